"""A node and a controller in network namespaces of their own, and the cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.node import Node, until
from tests.kit.places import SLUICE
from tests.kit.queue.controller import QueueController
from tests.queue.server.certificates import Authority
from tests.queue.state.world import TEAMS

CONTROLLER, NODE = "10.213.77.1", "10.213.77.2"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=120)


@dataclass
class Cable:
    """Two namespaces and a veth pair."""

    name: str

    @property
    def spaces(self) -> tuple[str, str]:
        return f"sq-{self.name}-c", f"sq-{self.name}-n"

    def lay(self) -> None:
        left, right = self.spaces
        for space in self.spaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        _ip(
            "link",
            "add",
            f"sq{self.name}c",
            "netns",
            left,
            "type",
            "veth",
            "peer",
            "name",
            f"sq{self.name}n",
            "netns",
            right,
        )
        for space, end, address in ((left, "c", CONTROLLER), (right, "n", NODE)):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", f"sq{self.name}{end}")
            _ip("-n", space, "link", "set", f"sq{self.name}{end}", "up")

    def pull(self) -> None:
        """No packet gets through, in either direction; the interfaces stay up, as with a broken switch."""
        for space in self.spaces:
            _ip(
                "-n",
                space,
                "route",
                "add",
                "blackhole",
                f"{CONTROLLER if space == self.spaces[1] else NODE}/32",
            )

    def plug(self) -> None:
        for space in self.spaces:
            _ip(
                "-n",
                space,
                "route",
                "del",
                "blackhole",
                f"{CONTROLLER if space == self.spaces[1] else NODE}/32",
            )

    def remove(self) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, timeout=120)

    @staticmethod
    def inside(space: str) -> tuple[str, ...]:
        # Not `ip netns exec`: that makes a mount namespace too, and grants are mounts.
        return ("nsenter", f"--net=/run/netns/{space}")


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter"))):
        pytest.skip("network namespaces need root, ip and nsenter: the partition is NOT tested")
    made = Cable(uuid.uuid4().hex[:6])
    try:
        try:
            made.lay()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here, the partition is NOT tested: {error.stderr}")
        yield made
    finally:
        made.remove()


class NodeInSpace(Node):
    """A node whose daemon lives in another network namespace; any process may connect to its Unix socket."""

    space = ""

    def start(self) -> None:
        log = (self.directory / "daemon.log").open("ab")
        self.daemon = subprocess.Popen(
            [
                *Cable.inside(self.space),
                SLUICE,
                "serve",
                "--config",
                self.directory / "sluice.toml",
            ],
            env=self.on_the_driver(),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        until("the daemon answers and knows its GPUs", self._ready)


@pytest.fixture
def both(
    cable: Cable, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[QueueController, NodeInSpace]]:
    base = tmp_path_factory.mktemp("p")
    authority = Authority(base / "pki")
    server = authority.issue("queue", f"IP:{CONTROLLER}")
    mine = authority.issue("n1", "URI:sluice:node:n1")
    admin = authority.issue("admin", "URI:sluice:admin:admin")
    controller = QueueController(
        base / "queue",
        settings=[
            *(
                "nodes.lease_s=3",
                "nodes.report_s=0.5",
                "nodes.lost_after_s=600",
            ),
            *(f"tls.certificate={server.certificate}", f"tls.key={server.key}"),
            f"tls.client_ca={authority.ca}",
        ],
        host=CONTROLLER,
        tcp=True,
        prefix=cable.inside(cable.spaces[0]),
        client_flags=[
            "--ca",
            str(authority.ca),
            "--certificate",
            str(admin.certificate),
            "--key",
            str(admin.key),
        ],
    )
    NodeInSpace.space = cable.spaces[1]
    directory = Path(f"/tmp/sq-{cable.name}")
    node = NodeInSpace(
        directory,
        gpus="1xh100-80gb",
        settings=f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\nnamespace = "team-a"\n'
        f'ca = "{authority.ca}"\ncertificate = "{mine.certificate}"\nkey = "{mine.key}"\n',
    )
    try:
        controller.start()
        controller.apply(TEAMS)
        node.start()
        yield controller, node
    except BaseException:
        print((directory / "daemon.log").read_text()[-3000:], controller.log[-3000:])
        raise
    finally:
        node.stop()
        controller.stop()
        shutil.rmtree(directory, ignore_errors=True)
