"""Writes packaging/helm/sluice/files/vendor-resources.yaml: the resources of other vendors' devices, which the chart's scheduler leaves
to the queue, from the table that places them (queuecontroller/gpushares/vendors/table.py). `make chart` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from queuecontroller.gpushares.vendors import ROWS

HEAD = "# Made by packaging/generate/vendors.py from queuecontroller/gpushares/vendors/table.py: change it there, then `make chart`.\n"


def text() -> str:
    names = sorted({name for row in ROWS for name in row.resources})
    return HEAD + yaml.safe_dump({"resources": names}, width=120)


if __name__ == "__main__":
    sys.stdout.write(text())
