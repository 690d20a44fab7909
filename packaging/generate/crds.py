"""Writes Kueue's CustomResourceDefinitions from the table of their fields (queuecontroller/kueueapi/table.py).
`make chart` writes packaging/kubernetes/kueue-crds.yaml and the chart's copy with it.

    packaging/generate/crds.py >packaging/kubernetes/kueue-crds.yaml
    packaging/generate/crds.py --url https://127.0.0.1:9443 --ca-file ca.crt
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from queuecontroller.kueueapi.crds import Webhook, definitions, validation

HEAD = """\
# Made by packaging/generate/crds.py from queuecontroller/kueueapi/table.py: change it there, then `make chart`.
# The conversion webhook has no caBundle here: it must be filled in (docs/queue/kueue-api.md).
"""


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True  # kubectl reads them, people do not


def text(webhook: Webhook, with_validation: bool = False) -> str:
    documents = definitions(webhook) + ([validation(webhook)] if with_validation else [])
    made = yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=120, explicit_start=True)
    return HEAD + made


def compact() -> str:
    """The chart's: it fills in its own namespace. Helm keeps all of a release in one Secret."""
    return HEAD + "\n---\n".join(json.dumps(one) for one in definitions(Webhook())) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="of the webhooks, outside a cluster")
    parser.add_argument("--namespace", default=Webhook().namespace, help="of their Service")
    parser.add_argument("--service", default=Webhook().service, help="name of their Service")
    parser.add_argument("--ca-file", type=Path, help="CA of the webhooks' certificate (PEM)")
    parser.add_argument("--validation", action="store_true", help="also the validating webhook")
    parser.add_argument("--compact", action="store_true", help="a line each, for the chart")
    given = parser.parse_args()
    if given.compact:
        sys.stdout.write(compact())
        return
    bundle = base64.b64encode(given.ca_file.read_bytes()).decode() if given.ca_file else ""
    webhook = Webhook(bundle, given.url, given.namespace, given.service)
    sys.stdout.write(text(webhook, given.validation))


if __name__ == "__main__":
    main()
