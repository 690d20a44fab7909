"""Prometheus itself on the node, out of Debian's package (the same that promtool is taken from). Rules wait minutes before they
fire, so that a short outage pages no one; here they do not wait."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.cluster.machine.node import Cluster
from tests.cluster.programs import pins
from tests.cluster.programs.build import Unbuildable, once

PORT = 9090


def program() -> Path:
    def make(target: Path) -> None:
        done = subprocess.run(
            ["apt-get", "download", "-qq", "prometheus"], cwd=target, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Unbuildable(f"apt-get download prometheus: {done.stderr[-300:]}")
        (deb,) = target.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", deb, target / "root"], check=True)
        shutil.copy(target / "root" / "usr" / "bin" / "prometheus", target / "prometheus")
        shutil.rmtree(target / "root")
        deb.unlink()

    return once(pins.Part("prometheus", "debian", (), "1"), make) / "prometheus"


class Prometheus:
    def __init__(self, cluster: Cluster, target: str, rules: Mapping[str, Any]) -> None:
        """`target`: host:port of a page of metrics. `rules`: the spec of a PrometheusRule, which is a file of rules."""
        self._cluster = cluster
        self._target = target
        self._rules = rules
        self._place = cluster.directory / "prometheus"

    def __enter__(self) -> Prometheus:
        self._place.mkdir(exist_ok=True)
        groups = [
            {**group, "rules": [{**rule, "for": "0s"} for rule in group["rules"]]}
            for group in self._rules["groups"]
        ]
        (self._place / "rules.yaml").write_text(json.dumps({"groups": groups}))
        scrape = [{"job_name": "sluice", "static_configs": [{"targets": [self._target]}]}]
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self._place / "rules.yaml")],
            "scrape_configs": scrape,
        }
        (self._place / "prometheus.yml").write_text(json.dumps(settings))
        self._cluster.supervisor(
            start="prometheus",
            command=[
                str(program()),
                f"--config.file={self._place / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._place / 'data'}",
                f"--web.listen-address=127.0.0.1:{PORT}",
            ],
            log=str(self._cluster.directory / "log" / "prometheus.log"),
            environment=self._cluster.environment(),
        )
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._cluster.supervisor(stop="prometheus", wait_s=20)
        shutil.rmtree(self._place, ignore_errors=True)

    def _get(self, path: str) -> Any:
        text = self._cluster.page("127.0.0.1", PORT, path)
        return json.loads(text)["data"]

    def up(self) -> bool:
        """Has the target, and the rules without a fault."""
        targets = self._get("/api/v1/targets")["activeTargets"]
        groups = self._get("/api/v1/rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return (
            bool(rules)
            and all(one["health"] == "up" for one in targets)
            and all(rule["health"] == "ok" for rule in rules)
        )

    def firing(self) -> dict[str, dict[str, str]]:
        """Labels by the alert's name."""
        found = self._get("/api/v1/alerts")["alerts"]
        return {
            one["labels"]["alertname"]: one["labels"] for one in found if one["state"] == "firing"
        }
