"""A tenant process without CUDA: registers as proto/register.h says and writes its usage where
it is told.

Run as `python -m tests.kit.daemon.tenant GRANT_DIR`; obeys one command per line on stdin and
answers one JSON line: `register [SLOT+1]`, `claim SLOT`, `set SLOT FIELD VALUE`, `truncate
BYTES`, `grow BYTES`, `punch OFFSET LENGTH`, `write OFFSET HEX`, `garbage`, `close`, `become`,
`entry SLOT`, `turn DEVICE`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import sys
from pathlib import Path

from nodeagent.adapters.processes.identity import read_process
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region import layout as c

PUNCH_HOLE = 0x03
"""FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""
_OTHER_PROGRAM = "import sys; print(chr(34) + 'ready' + chr(34), flush=True); sys.stdin.read()"


class TenantProcess:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        policy = os.open(directory / c.POLICY_FILE, os.O_RDONLY)
        self._policy_map = mmap.mmap(policy, c.POLICY_BYTES, prot=mmap.PROT_READ)
        self.usage_fd = os.open(directory / c.USAGE_FILE, os.O_RDWR)
        self._usage_map = mmap.mmap(self.usage_fd, c.USAGE_BYTES)
        self.usage = c.Usage.from_buffer(self._usage_map)
        self._socket: socket.socket | None = None

    def policy(self) -> c.Policy:
        return c.Policy.from_buffer_copy(self._policy_map[:])

    def register(self, claimed: int = 0) -> dict[str, int]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(5.0)
        connection.connect(str(self.directory / c.SOCKET_FILE))
        request = c.RegisterRequest(
            magic=c.REGISTER_MAGIC,
            version=c.REGISTER_VERSION,
            region_major=c.REGION_MAJOR,
            ns_pid=os.getpid(),
            claimed_slot=claimed,
        )
        connection.send(bytes(request))
        reply = c.RegisterReply.from_buffer_copy(connection.recv(64))
        if reply.error == 0:
            self._socket = connection
            self.usage.slot[reply.slot].generation_seen = reply.generation
            self.usage.slot[reply.slot].image = SystemProcesses().image_of(os.getpid())
        return {"error": reply.error, "slot": reply.slot, "generation": reply.generation}

    def claim(self, slot: int) -> None:
        process = read_process(os.getpid())
        self.usage.header.claim_high = max(self.usage.header.claim_high, slot + 1)
        self.usage.slot[slot].claim_starttime = process.starttime_ticks
        self.usage.slot[slot].image = SystemProcesses().image_of(os.getpid())
        self.usage.slot[slot].self_claim = os.getpid() << 32 | 1

    def obey(self, words: list[str]) -> object:
        match words:
            case ["register", *rest]:
                return self.register(int(rest[0]) if rest else 0)
            case ["claim", slot]:
                self.claim(int(slot))
            case ["set", slot, field, value]:
                setattr(self.usage.slot[int(slot)].dev[0], field, int(value))
            case ["beat", slot, value]:
                self.usage.slot[int(slot)].heartbeat_ns = int(value)
            case ["get", slot, field]:
                return getattr(self.usage.slot[int(slot)].dev[0], field)
            case ["truncate", size]:
                os.ftruncate(self.usage_fd, int(size))
            case ["garbage"]:
                os.pwrite(self.usage_fd, b"\xff" * c.USAGE_BYTES, 0)
            case ["close"]:
                assert self._socket is not None
                self._socket.close()
            case ["claimed", slot]:
                return self.usage.slot[int(slot)].self_claim
            case ["grow", size]:
                try:
                    os.posix_fallocate(self.usage_fd, 0, int(size))
                except OSError as error:
                    return error.errno
            case ["punch", offset, length]:
                arguments = (ctypes.c_int(PUNCH_HOLE), int(offset), int(length))
                wide = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fallocate.argtypes = wide
                return ctypes.get_errno() if libc.fallocate(self.usage_fd, *arguments) else 0
            case ["write", offset, data]:
                return os.pwrite(self.usage_fd, bytes.fromhex(data), int(offset))
            case ["size"]:
                return os.fstat(self.usage_fd).st_size
            case ["disguise", slot, pid]:
                self.usage.slot[int(slot)].claim_starttime = read_process(int(pid)).starttime_ticks
                self.usage.slot[int(slot)].self_claim = int(pid) << 32 | 1
            case ["fork"]:
                child = os.fork()
                if child == 0:
                    signal.pause()
                return {"pid": child}
            case ["exec"]:
                os.execv(sys.executable, [sys.executable, "-c", _OTHER_PROGRAM])
            case ["become"]:  # the same program again, in the same process
                module = "tests.kit.daemon.tenant"
                os.execv(sys.executable, [sys.executable, "-m", module, str(self.directory)])
            case ["entry", slot]:
                entry = self.policy().dir[int(slot)]
                return {name: getattr(entry, name) for name, _ in entry._fields_}
            case ["turn", device]:
                line = self.policy().dev[int(device)]
                wanted = ("turn_mode", "plan_ppm", "active_grants", "share_ppm", "flags")
                lease = ("lease_period_ns", "lease_quantum_ns", "lease_origin_ns")
                limits = ("memory_limit_bytes", "contention_epoch")
                return {name: getattr(line, name) for name in (*wanted, *lease, *limits)}
            case _:
                raise ValueError(words)
        return None


def main() -> None:
    assert ctypes.sizeof(c.RegisterReply) == 24
    tenant = TenantProcess(
        Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["SLUICE_GRANT_DIR"])
    )
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(tenant.obey(line.split())), flush=True)


if __name__ == "__main__":
    main()
