"""Writes docs/reference/metrics-queue.md and docs/reference/metrics-node.md: every metric with its kind, labels and help, from the
catalogues that the services serve them by.

`python packaging/generate/metrics.py PAGE`, with PAGE one of metrics-queue.md, metrics-node.md, in the virtual environment; written to
standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent.core.metrics import catalogue, dcgm
from queuecontroller.server.metrics import catalogue as queue_catalogue
from queuecontroller.server.metrics import kueue_catalogue
from sluicecommon.hami import metrics as hami
from sluicecommon.metric import Kind, Metric

_GENERATED: Final = "Generated from the code by `make docs`. How to scrape, alert and draw: [metrics.md](../metrics.md)."


def exposed(metric: Metric) -> str:
    """The name in a scrape: the exposition adds `_total` to a counter unless its name is another exporter's."""
    return metric.name + ("_total" if metric.kind is Kind.COUNTER and not metric.exact else "")


def table(metrics: Iterable[Metric]) -> str:
    lines = ["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{exposed(one)}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"


def queue_md() -> str:
    theirs = frozenset(kueue_catalogue.CATALOGUE)
    others = [one for one in queue_catalogue.CATALOGUE if one not in theirs]
    return f"""\
# Metrics of the queue controller

{_GENERATED}

## Kueue's names

Names, kinds and labels are those of Kueue 0.19. CPU is given in cores.

{table(kueue_catalogue.CATALOGUE)}
## Sluice's own

{table(one for one in others if one not in hami.SCHEDULER)}
## HAMi's names

ResourceQuotas of namespaces, and devices of other vendors than NVIDIA.

{table(hami.SCHEDULER)}"""


def node_md() -> str:
    return f"""\
# Metrics of the node

{_GENERATED}

## Sluice's own

{table(catalogue.CATALOGUE)}
## dcgm-exporter's names

Served with `metrics.dcgm`. Names, units and labels are dcgm-exporter's: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, `Hostname` (or
`hostname`, or both: `metrics.dcgm_hostname_label`), `DCGM_FI_DRIVER_VERSION`; of a MIG instance also `GPU_I_PROFILE` and `GPU_I_ID`; and
`container`, `namespace` and `pod` while exactly one container has the GPU.

| Metric | Kind | Meaning |
|---|---|---|
{_dcgm_rows()}
## HAMi's names

Served with `metrics.hami`; the names before HAMi 2.9 only with `"legacy"`.

| Metric | Before HAMi 2.9 | Kind | Labels | Meaning |
|---|---|---|---|---|
{_hami_rows()}"""


def _dcgm_rows() -> str:
    rows = [(name, kind, help_) for name, kind, help_, _ in dcgm.FAMILIES]
    rows.append((dcgm.XID_ERRORS, Kind.GAUGE, dcgm.XID_HELP))
    return "".join(f"| `{name}` | {kind} | {help_} |\n" for name, kind, help_ in rows)


def _hami_rows() -> str:
    rows = []
    for one in hami.NODE:
        legacy = f"`{one.legacy.name}`" if one.legacy else ""
        labels = ", ".join(f"`{label}`" for label in one.metric.labels)
        rows.append(
            f"| `{exposed(one.metric)}` | {legacy} | {one.metric.kind} | {labels} | {one.metric.help} |\n"
        )
    return "".join(rows)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "metrics-queue.md": queue_md,
    "metrics-node.md": node_md,
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PAGES:
        print(f"usage: metrics.py {{{','.join(PAGES)}}}", file=sys.stderr)
        return 2
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # it is a text stream
    sys.stdout.write(PAGES[arguments[0]]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
