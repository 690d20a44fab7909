"""Stands for kube-proxy and CoreDNS on a node without netfilter: the address of every Service is on `lo` and its TCP ports go to
the ready endpoints; names of Services are answered on the cluster's DNS address. Run on each node: `python -m tests.cluster.machine.services PKI HOST`, with an
address of the API server.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.api import Api, ApiError
from tests.cluster.machine.settings import API_PORT, DNS_IP

POLL_S = 0.5
CONNECT_S = 5.0
A_RECORD, NO_SUCH_NAME = 1, 3

Target = tuple[str, int]


class Forwarder:
    def __init__(self, api: Api) -> None:
        self._api = api
        self.names: dict[str, list[str]] = {}
        self._targets: dict[Target, list[Target]] = {}
        self._listeners: dict[Target, asyncio.Server] = {}
        self._addresses: set[str] = set()
        self._turn = itertools.count()

    async def look(self) -> None:
        services = await asyncio.to_thread(self._api.items, "services")
        slices = await asyncio.to_thread(self._api.get, "/apis/discovery.k8s.io/v1/endpointslices")
        ready = endpoints(slices["items"])
        names, targets = {}, {}
        for service in services:
            namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
            address = service["spec"].get("clusterIP")
            if address in (None, "", "None"):
                found = [
                    ip
                    for key, all_of in ready.items()
                    if key[:2] == (namespace, name)
                    for ip, _ in all_of
                ]
                names[f"{name}.{namespace}.svc"] = sorted(set(found))
                continue
            names[f"{name}.{namespace}.svc"] = [address]
            self.own(address)
            for port in service["spec"].get("ports", []):
                if port.get("protocol", "TCP") == "TCP":
                    key = (address, port["port"])
                    targets[key] = ready.get((namespace, name, port.get("name") or ""), [])
        self.names, self._targets = names, targets
        for key in targets.keys() - self._listeners.keys():
            self._listeners[key] = await asyncio.start_server(self._serve(key), *key)
        for key in self._listeners.keys() - targets.keys():
            self._listeners.pop(key).close()

    def own(self, address: str) -> None:
        if address not in self._addresses:
            subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], capture_output=True)
            self._addresses.add(address)

    def _serve(self, key: Target) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            targets = self._targets.get(key, [])
            for _ in targets:
                target = targets[next(self._turn) % len(targets)]
                with suppress(OSError, asyncio.TimeoutError):
                    there = await asyncio.wait_for(asyncio.open_connection(*target), CONNECT_S)
                    await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
                    break
            writer.close()

        return serve


def endpoints(slices: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[Target]]:
    """Addresses by namespace, Service and name of the port."""
    found: dict[tuple[str, str, str], list[Target]] = {}
    for one in slices:
        service = one["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
        for port in one.get("ports") or []:
            for endpoint in one.get("endpoints") or []:
                if endpoint.get("conditions", {}).get("ready", True):
                    key = (one["metadata"]["namespace"], service, port.get("name") or "")
                    found.setdefault(key, []).extend(
                        (ip, port["port"]) for ip in endpoint["addresses"]
                    )
    return found


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


class Dns(asyncio.DatagramProtocol):
    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: Any) -> None:
        with suppress(IndexError, UnicodeDecodeError, struct.error):  # not a question
            self._transport.sendto(answer(data, self._forwarder.names), sender)


def answer(question: bytes, names: dict[str, list[str]]) -> bytes:
    """The DNS answer: A records of five seconds, none for other types, no such name."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    (kind,) = struct.unpack(">H", question[at + 1 : at + 3])
    addresses = names.get(".".join(labels).lower().removesuffix(".cluster.local"))
    given = addresses if addresses and kind == A_RECORD else []
    records = b"".join(
        struct.pack(">HHHIH", 0xC00C, 1, 1, 5, 4) + socket.inet_aton(ip) for ip in given
    )
    flags = 0x8580 | (NO_SUCH_NAME if addresses is None else 0)
    return (
        question[:2]
        + struct.pack(">HHHHH", flags, 1, len(given), 0, 0)
        + question[12 : at + 5]
        + records
    )


async def serve(pki: Path, host: str) -> None:
    forwarder = Forwarder(Api(host, API_PORT, pki))
    forwarder.own(DNS_IP)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Dns(forwarder), local_addr=(DNS_IP, 53))
    while True:
        try:
            await forwarder.look()
        except (OSError, ApiError) as error:
            print("services:", error, flush=True)
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
