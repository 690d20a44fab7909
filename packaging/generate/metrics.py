"""Writes docs/reference/metrics-queue.md and docs/reference/metrics-node.md: every metric with its kind, labels and help, from the
catalogues that the services serve them by.

`python packaging/generate/metrics.py PAGE`, with PAGE one of metrics-queue.md, metrics-node.md, in the virtual environment; written to
standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nodeagent.core.metrics import catalogue, dcgm, hami
from queuecontroller.server.metrics import catalogue as queue_catalogue
from queuecontroller.server.metrics import kueue_catalogue
from sluicecommon.metric import Kind, Metric

_BY_LOCAL_QUEUE: Final = "The same, by LocalQueue."
_DEVICE: Final = frozenset({"node", "device_index", "device_uuid", "device_type"})
"""Labels of HAMi's metrics of a device."""
_FAMILIES: Final = (
    ("kueue_", ("replica_role",)),
    ("multikueue_", ("replica_role",)),
    ("sluice_gpu_", ("gpu", "index")),
    ("sluice_grant_", ("grant", "name")),
)
"""Labels that all metrics whose names begin so have."""
_DEVICE_TEXT: Final = "`device`: the labels `node`, `device_index`, `device_uuid` and `device_type`."

_GENERATED: Final = "Generated from the code by `make docs`. How to scrape, alert and draw: [metrics.md](../metrics.md)."


def exposed(metric: Metric) -> str:
    """The name in a scrape: the exposition adds `_total` to a counter unless its name is another exporter's."""
    return metric.name + ("_total" if metric.kind is Kind.COUNTER and not metric.exact else "")


def table(metrics: Iterable[Metric]) -> str:
    lines = ["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|"]
    known = list(metrics)
    twins = {one.name: twin for one, twin in pairwise(known) if _is_twin(one, twin)}
    for one in known:
        if one in twins.values():
            continue
        names = [exposed(one), *(exposed(twins[key]) for key in (one.name,) if key in twins)]
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {shown} | {one.kind} | {labels_of(one)} | {one.help} |")
    return "\n".join(lines) + "\n"


def _is_twin(one: Metric, other: Metric) -> bool:
    """Whether the second is the first by LocalQueue, with the LocalQueue's labels instead."""
    expected = ("name", "namespace", *(label for label in one.labels if label != "cluster_queue"))
    return other.help == _BY_LOCAL_QUEUE and one.kind is other.kind and other.labels == expected


def labels_of(metric: Metric) -> str:
    """The labels without those that the page's text gives to all metrics of the family."""
    labels = list(metric.labels)
    if set(labels) >= _DEVICE:
        labels = ["device", *(label for label in labels if label not in _DEVICE)]
    common = next((known for family, known in _FAMILIES if metric.name.startswith(family)), ())
    return ", ".join(f"`{label}`" for label in labels if label not in common)


def queue_md() -> str:
    theirs = frozenset(kueue_catalogue.CATALOGUE)
    others = [one for one in queue_catalogue.CATALOGUE if one not in theirs]
    hamis = [one for one in others if one.name.startswith("hami_")]
    return f"""\
# Metrics of the queue controller

{_GENERATED}

## Kueue's names

Names, kinds and labels are those of Kueue 0.19; CPU is in cores. All have the label `replica_role`. A second name is the same by LocalQueue,
with `name` and `namespace` in place of `cluster_queue`.

{table(kueue_catalogue.CATALOGUE)}
## Sluice's own

{table(one for one in others if one not in hamis)}
## HAMi's names

ResourceQuotas of namespaces, and devices of other vendors than NVIDIA. {_DEVICE_TEXT}

{table(hamis)}"""


def node_md() -> str:
    return f"""\
# Metrics of the node

{_GENERATED}

## Sluice's own

`sluice_gpu_…` have the labels `gpu` (UUID) and `index`, `sluice_grant_…` `grant` (id) and `name`, besides those listed.

{table(catalogue.CATALOGUE)}
## dcgm-exporter's names

Served with `metrics.dcgm`. Names, units and labels are dcgm-exporter's: `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, `Hostname` (or
`hostname`, or both: `metrics.dcgm_hostname_label`), `DCGM_FI_DRIVER_VERSION`; of a MIG instance also `GPU_I_PROFILE` and `GPU_I_ID`; and
`container`, `namespace` and `pod` while exactly one container has the GPU.

| Metric | Kind | Meaning |
|---|---|---|
{_dcgm_rows()}
## HAMi's names

Served with `metrics.hami`; the names before HAMi 2.9 only with `"legacy"`. {_DEVICE_TEXT}

| Metric | Before HAMi 2.9 | Kind | Labels | Meaning |
|---|---|---|---|---|
{_hami_rows()}"""


def _dcgm_rows() -> str:
    rows = [(name, kind, help_) for name, kind, help_, _ in dcgm.FAMILIES]
    rows.append((dcgm.XID_ERRORS, Kind.GAUGE, dcgm.XID_HELP))
    return "".join(f"| `{name}` | {kind} | {help_} |\n" for name, kind, help_ in rows)


def _hami_rows() -> str:
    rows = []
    for one in hami.FAMILIES:
        legacy = f"`{one.legacy.name}`" if one.legacy else ""
        labels = labels_of(one.metric)
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
