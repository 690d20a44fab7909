"""The metrics: frozen names in each mode, the rules of `promtool check metrics`, what a hostile
name or too many series do, and docs/reference/metrics-node.md true to the catalogue."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics import dcgm as dcgm_metrics
from nodeagent.core.metrics.catalogue import CATALOGUE
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.gpus import MigReading
from nodeagent.settings.daemon import ConfigError, MetricsSettings, parse
from nodeagent.shell.api.scrape import Scrape
from nodeagent.units import Bytes, GpuUuid
from sluicecommon.hami import metrics as hami_metrics
from sluicecommon.metric import Kind, Metric
from sluicecommon.prometheus import Exposition, clean, wants_openmetrics
from tests.golden import check
from tests.kit.places import REPO
from tests.unit.nodeagent.metrics.scraping import scrape
from tests.unit.nodeagent.metrics.views import CAPTURED, GIB, contained, grant, node

GOLDEN = REPO / "tests" / "golden" / "metrics-all.txt"
OTHER_UNITS = re.compile(
    r"_(ms|milliseconds|us|minutes|hours|days|kb|mb|gb|mib|gib|kilobytes|megabytes|percent|mw|milliwatts)\b"
)
ALL: dict[str, tuple[dict[str, Any], bool]] = {
    "metrics-all": ({"dcgm": "on", "hami": "legacy"}, False),
    "metrics-all-openmetrics": (
        {"dcgm": "on", "dcgm_hostname_label": "both", "hami": "legacy"},
        True,
    ),
}
"""Settings with every family on."""
MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "metrics-v1": ({}, False),
    "metrics-v1-openmetrics": ({}, True),
    "metrics-dcgm": ({"dcgm": "on"}, False),
    "metrics-dcgm-openmetrics": ({"dcgm": "on", "dcgm_hostname_label": "both"}, True),
    "metrics-hami": ({"hami": "on"}, False),
    "metrics-hami-legacy": ({"hami": "legacy"}, False),
}


@pytest.mark.parametrize("name", ALL)
def test_the_page_with_every_family_is_frozen(name: str) -> None:
    settings, openmetrics = ALL[name]
    page = scrape(openmetrics=openmetrics, **settings)
    if openmetrics:
        assert page == as_openmetrics(GOLDEN.read_text())
    else:
        check(GOLDEN, page)


def as_openmetrics(page: str) -> str:
    """The golden page in the other format, with DCGM's label `hostname` in both spellings.

    Names of counters lose their `_total` in the comments; a counter without one is of an unknown type.
    """
    named = re.sub(
        r"^# HELP (\S+)_total (.*)\n# TYPE \1_total counter$",
        r"# HELP \1 \2\n# TYPE \1 counter total",
        page,
        flags=re.MULTILINE,
    )
    typed = re.sub(r"^(# TYPE \S+) counter$", r"\1 unknown", named, flags=re.MULTILINE)
    typed = re.sub(r"^(# TYPE \S+ counter) total$", r"\1", typed, flags=re.MULTILINE)
    return typed.replace('Hostname="node-1"', 'Hostname="node-1",hostname="node-1"') + "# EOF\n"


def served(family: str, settings: dict[str, Any]) -> bool:
    """True if these settings switch the family of that name on."""
    if family.startswith("DCGM_"):
        return "dcgm" in settings
    if family.startswith("sluice_"):
        return True
    new = {one.metric.name for one in hami_metrics.NODE}
    return "hami" in settings and (family in new or settings["hami"] == "legacy")


@pytest.mark.parametrize("mode", MODES)
def test_the_whole_page_of_a_captured_node_is_frozen(mode: str) -> None:
    """Each mode serves, to the letter, the golden page without the families that it leaves out."""
    settings, openmetrics = MODES[mode]
    golden = GOLDEN.read_text()
    if openmetrics:
        golden = as_openmetrics(golden)
    families = re.split(r"^(?=# HELP |# EOF)", golden, flags=re.MULTILINE)
    expected = "".join(
        one
        for one in families
        if one.startswith("# EOF") or served(one[7:].split(" ")[0], settings)
    )
    assert scrape(openmetrics=openmetrics, **settings) == expected


@pytest.mark.parametrize("mode", MODES)
def test_no_series_comes_twice(mode: str) -> None:
    settings, openmetrics = MODES[mode]
    text = scrape(openmetrics=openmetrics, **settings)
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'reason="duplicate"} 0' in text


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_reader_of_the_format_reads_all_of_it(openmetrics: bool) -> None:
    text = scrape(openmetrics=openmetrics, dcgm="on", hami="legacy")
    parse_text = openmetrics_families if openmetrics else text_string_to_metric_families
    families = {family.name: family for family in parse_text(text)}
    samples = sum(len(family.samples) for family in families.values())
    assert samples == sum(not line.startswith("#") for line in text.splitlines())
    kind = "unknown" if openmetrics else "counter"
    assert (
        f"# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER {kind}\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER{{" in text
    )


def test_every_metric_of_the_catalogue_has_a_sample() -> None:
    mig = MigReading(GpuUuid("MIG-1"), "1g.10gb", 7, 0, Bytes(10 * GIB), Bytes(GIB))
    view = node()
    view = replace(view, readings=(replace(view.readings[0], mig=(mig,)), *view.readings[1:]))
    text = scrape(view)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {metric.name for metric in CATALOGUE}
    for metric in CATALOGUE:
        family = families[metric.name]
        assert family.samples, metric.name
        assert family.type == metric.kind.value
        assert set(family.samples[0].labels) - {"le"} == set(metric.labels)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_promtool(metric: Metric) -> None:
    assert re.fullmatch(r"sluice_[a-z][a-z0-9_]*", metric.name)
    assert metric.help
    assert metric.help.endswith(".")
    assert not metric.name.endswith("_total"), "the exposition adds it to counters"
    assert not OTHER_UNITS.search(metric.name), "base units only"
    assert "counter" not in metric.name
    assert "gauge" not in metric.name
    assert all(
        re.fullmatch(r"[a-z][a-z0-9_]*", label) and label not in ("le", "quantile")
        for label in metric.labels
    )
    if metric.kind is Kind.GAUGE and metric.name.endswith("_info"):
        assert "always 1" in metric.help


def promtool(*arguments: str, text: str) -> tuple[int, str]:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    answer = subprocess.run(
        [tool, *arguments], input=text, text=True, capture_output=True, timeout=60, check=False
    )
    return answer.returncode, answer.stdout + answer.stderr


def test_promtool_itself_finds_nothing() -> None:
    assert promtool("check", "metrics", text=scrape()) == (0, "")


@pytest.mark.parametrize("settings", [{"dcgm": "on"}, {"hami": "legacy"}], ids=str)
def test_promtool_reads_the_names_of_others(settings: dict[str, Any]) -> None:
    """Their names are not as its linter would have them; they must parse and be consistent."""
    _status, said = promtool("check", "metrics", text=scrape(**settings))
    assert "error while linting" not in said
    assert "sluice_" not in said


# --- the names of others ------------------------------------------------------------------------

DCGM_DEFAULTS = [
    "SM_CLOCK",
    "MEM_CLOCK",
    "MEMORY_TEMP",
    "GPU_TEMP",
    "POWER_USAGE",
    "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER",
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "XID_ERRORS",
    "FB_FREE",
    "FB_USED",
    "FB_RESERVED",
    "NVLINK_BANDWIDTH_TOTAL",
    "VGPU_LICENSE_STATUS",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "CORRECTABLE_REMAPPED_ROWS",
    "ROW_REMAP_FAILURE",
]
DCGM_PROFILED = [
    "GR_ENGINE_ACTIVE",
    "PIPE_TENSOR_ACTIVE",
    "DRAM_ACTIVE",
    "PCIE_TX_BYTES",
    "PCIE_RX_BYTES",
]
DASHBOARD_12239 = {
    *("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"),
    *("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
}
"""Series of the official dashboard, each with {instance, gpu}; `instance` is the scrape's."""


def by_family(text: str) -> dict[str, list[Any]]:
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_all_default_counters_of_dcgm_exporter_are_there() -> None:
    wanted = {
        *(f"DCGM_FI_DEV_{name}" for name in DCGM_DEFAULTS),
        *(f"DCGM_FI_PROF_{name}" for name in DCGM_PROFILED),
    }
    assert set(dcgm_metrics.NAMES) == wanted
    families = by_family(scrape(dcgm="on"))
    for name in wanted:
        assert len(families[name]) == 2, f"{name}: one series for each GPU"


@pytest.mark.parametrize("name", sorted(DASHBOARD_12239))
def test_the_official_dashboard_finds_its_data(name: str) -> None:
    samples = by_family(scrape(dcgm="on"))[name]
    assert {sample.labels["gpu"] for sample in samples} == {"0", "1"}
    for sample in samples:
        assert {"gpu", "UUID", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"} <= set(
            sample.labels
        )
        assert math.isfinite(sample.value)


def test_values_are_in_the_units_of_dcgm() -> None:
    families = by_family(scrape(dcgm="on"))
    first = CAPTURED.gpus[0]
    value = {name: samples[0].value for name, samples in families.items() if samples}
    assert value["DCGM_FI_DEV_SM_CLOCK"] == (first.sm_clock_hz or 0) / 1e6
    assert value["DCGM_FI_DEV_FB_USED"] == (first.memory_used_bytes or 0) // 2**20
    assert (
        value["DCGM_FI_DEV_FB_FREE"] + value["DCGM_FI_DEV_FB_USED"]
        == first.memory_total_bytes // 2**20
    )
    assert value["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == (first.energy_joules_total or 0) * 1000
    assert value["DCGM_FI_DEV_GPU_UTIL"] == round((first.utilization_ratio or 0) * 100)
    assert value["DCGM_FI_DEV_XID_ERRORS"] == 31


def test_the_pod_is_named_where_it_has_the_gpu_alone_and_series_go_with_it() -> None:
    used = by_family(scrape(dcgm="on"))["DCGM_FI_DEV_FB_USED"]
    shared, alone = (sample.labels for sample in used)
    assert "pod" not in shared
    assert (alone["namespace"], alone["pod"], alone["container"]) == ("ml", "llm-0", "server")
    text = scrape(node(grant("batch")), dcgm="on", hami="on")
    assert "llm-0" not in text
    assert len(by_family(text)["DCGM_FI_DEV_FB_USED"]) == 2


@pytest.mark.parametrize(
    ("label", "spelt"),
    [("Hostname", {"Hostname"}), ("hostname", {"hostname"}), ("both", {"Hostname", "hostname"})],
)
def test_the_hostname_label_is_spelt_as_asked(label: str, spelt: set[str]) -> None:
    samples = by_family(scrape(dcgm="on", dcgm_hostname_label=label))["DCGM_FI_DEV_GPU_TEMP"]
    assert {name for name in samples[0].labels if name.lower() == "hostname"} == spelt
    assert {samples[0].labels[name] for name in spelt} == {"node-1"}


def test_with_mig_the_memory_is_told_by_instance() -> None:
    mig = MigReading(GpuUuid("MIG-1"), "1g.10gb", 7, 0, Bytes(10 * GIB), Bytes(GIB))
    view = node()
    view = replace(view, readings=(replace(view.readings[0], mig=(mig,)),))
    (sample,) = by_family(scrape(view, dcgm="on"))["DCGM_FI_DEV_FB_USED"]
    assert (sample.labels["GPU_I_PROFILE"], sample.labels["GPU_I_ID"]) == ("1g.10gb", "7")
    assert sample.value == 1024


def test_with_mig_the_pod_is_in_the_labels_of_its_instance() -> None:
    migs = tuple(
        MigReading(GpuUuid(f"MIG-{number}"), "1g.10gb", number, 0, Bytes(10 * GIB), Bytes(GIB))
        for number in (1, 2)
    )
    view = node()
    grant = next(one for one in view.grants if one.container is not None)
    moved = replace(grant, devices=(replace(grant.devices[0], gpu=GpuUuid("MIG-2")),))
    view = replace(view, readings=(replace(view.readings[0], mig=migs),), grants=(moved,))
    assert grant.container is not None
    pods = {
        one.labels["GPU_I_ID"]: one.labels.get("pod")
        for one in by_family(scrape(view, dcgm="on"))["DCGM_FI_DEV_FB_USED"]
    }
    assert pods == {"1": None, "2": grant.container.pod}


def test_what_a_card_does_not_tell_has_no_series_and_never_a_zero() -> None:
    view = node()
    bare = replace(
        view.readings[0], profile=None, ecc_corrected_total=None, memory_temperature_celsius=None,
        nvlink_tx_bytes_total=None, row_remap_failed=None, encoder_ratio=None,
    )  # fmt: skip
    families = by_family(scrape(replace(view, readings=(bare,)), dcgm="on"))
    for name in (
        *("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_ENC_UTIL"),
        *("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
        *("sluice_gpu_active_ratio", "sluice_gpu_memory_temperature_celsius"),
    ):
        assert not families.get(name), name


HAMI_MONITOR = {
    "hami_host_gpu_memory_used_bytes": {"node", "device_index", "device_uuid", "device_type"},
    "hami_host_gpu_utilization_ratio": {"node", "device_index", "device_uuid", "device_type"},
    "hami_host_gpu_memory_controller_utilization_ratio": {"device_index", "device_uuid", "device_type"},
    "hami_vgpu_memory_used_bytes": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_vgpu_memory_limit_bytes": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_container_device_memory_bytes": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_container_device_utilization_ratio": {"namespace", "pod", "container", "vdevice_index", "device_uuid"},
    "hami_gpu_memory_limit_bytes": {"node", "device_uuid", "device_index", "device_type"},
    "hami_node_gpu_overview": {"node", "device_uuid", "device_index", "device_cores", "device_memory_limit", "device_type"},
    "hami_node_gpu_memory_allocated_ratio": {"node", "device_uuid", "device_index"},
    "hami_gpu_shared_count": {"node", "device_uuid", "device_index", "device_type"},
    "hami_gpu_core_allocated_ratio": {"node", "device_uuid", "device_index", "device_type"},
    "hami_vgpu_memory_allocated_bytes": {"namespace", "node", "pod", "container_index", "device_uuid"},
}  # fmt: skip


@pytest.mark.parametrize("name", HAMI_MONITOR)
def test_hamis_names_carry_hamis_labels(name: str) -> None:
    samples = by_family(scrape(hami="on"))[name]
    assert samples
    assert all(HAMI_MONITOR[name] <= set(sample.labels) for sample in samples)


def test_legacy_names_say_the_same_as_the_new_ones() -> None:
    families = by_family(scrape(hami="legacy"))
    for family in hami_metrics.NODE:
        if family.legacy is None or not families.get(family.metric.name):
            continue
        new, old = families[family.metric.name], families[family.legacy.name]
        assert [(s.labels, s.value) for s in old] == [(s.labels, s.value) for s in new]
    assert "HostGPUMemoryUsage" not in scrape(hami="on")


def test_grants_of_one_name_outside_of_pods_are_told_apart() -> None:
    two = node(grant("same"), grant("same", "8ba79945-498f-493f-adf5-81b8b2b87dfa"))
    assert len(by_family(scrape(two, hami="on"))["hami_vgpu_memory_used_bytes"]) == 2


# --- hostile names, too many series -------------------------------------------------------------


@pytest.mark.parametrize(
    "evil",
    ['x"} 1\nsluice_build_info{version="forged', "\\", "a\x1b[2Jb", "naïve☠", "y" * 1000],
    ids=["forgery", "backslash", "terminal", "unicode", "long"],
)
def test_a_name_from_a_user_cannot_break_the_exposition(evil: str) -> None:
    text = scrape(
        node(grant(evil), contained(evil, evil, 1, 7, CAPTURED.gpus[0])), dcgm="on", hami="on"
    )
    families = by_family(text)
    assert [sample.labels["version"] for sample in families["sluice_build_info"]] == ["0.1.0"]
    assert text.count("\nsluice_build_info{") == 1
    assert text.isascii()
    assert all(len(sample.labels["name"]) <= 128 for sample in families["sluice_grant_info"])


def test_a_label_value_is_escaped_once() -> None:
    assert clean('a\\b"c') == 'a\\\\b\\"c'


def test_above_the_cap_series_are_left_out_and_counted_by_the_next_scrape() -> None:
    view = node()
    page = Scrape(MetricsSettings(max_series=100), lambda: view, {}, "n", dcgm=True)
    first = page().decode()
    series = [line for line in first.splitlines() if not line.startswith("#")]
    assert len(series) == 100
    everything = Scrape(MetricsSettings(), lambda: view, {}, "n", dcgm=True)().decode()
    left_out = sum(not line.startswith("#") for line in everything.splitlines()) - 100
    assert f'sluice_metrics_series_dropped_total{{reason="cap"}} {left_out}' in page().decode()


def test_a_duplicate_is_left_out_and_counted() -> None:
    page = Exposition()
    page.add(m.GRANT_PROCESSES, ("id", "name"), 1)
    page.add(m.GRANT_PROCESSES, ("id", "name"), 2)
    assert page.dropped == {"duplicate": 1}
    assert page.text().decode().splitlines()[2:] == [
        'sluice_grant_processes{grant="id",name="name"} 1'
    ]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text; version=1.0.0; q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_openmetrics_is_for_who_asks_for_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def test_buckets_add_up() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.observe(value)
    assert found.buckets() == [("1", 2), ("2", 3), ("+Inf", 4)]
    assert (found.count, found.total) == (4, 12.0)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"tls_certificate": "/c.pem"}, "metrics.tls_key"),
        ({"basic_password_file": "/p"}, "metrics.basic_user"),
        ({"dcgm": "yes"}, "metrics.dcgm"),
        ({"hami": True}, "metrics.hami"),
        ({"max_series": 1}, "metrics.max_series"),
    ],
    ids=str,
)
def test_half_a_setting_is_refused_by_its_name(given: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse({"metrics": given})
    assert key in str(refused.value)


# --- the page for people ------------------------------------------------------------------------


PAGE = REPO / "docs" / "reference" / "metrics-node.md"


COMMON = {"sluice_gpu_": ("gpu", "index"), "sluice_grant_": ("grant", "name")}
"""Labels that the page's text gives to all metrics whose names begin so."""


def rows(metrics: tuple[Metric, ...]) -> list[str]:
    lines = []
    for metric in metrics:
        name = metric.name + ("_total" if metric.kind is Kind.COUNTER and not metric.exact else "")
        common = next((given for start, given in COMMON.items() if name.startswith(start)), ())
        labels = ", ".join(f"`{label}`" for label in metric.labels if label not in common)
        kind = "*histogram:* " if metric.kind is Kind.HISTOGRAM else ""
        shown = f" ({labels})" if labels else ""
        lines.append(f"- `{name}`{shown}: {kind}{metric.help}")
    return lines


def test_the_page_says_what_the_catalogue_does() -> None:
    lines = PAGE.read_text().splitlines()
    assert [line for line in lines if line.startswith("- `sluice_")] == rows(CATALOGUE)


@pytest.mark.parametrize("name", [*dcgm_metrics.NAMES, *(f.metric.name for f in hami_metrics.NODE)])
def test_the_page_names_what_is_served_for_others(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text()
