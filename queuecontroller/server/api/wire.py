"""Messages of proto/sluice/v1/queue.proto, built at run time from the descriptor file.

There is no generated code, because protoc's Python output is tied to one protobuf release. A
FileDescriptorSet is not, so Debian 12's protobuf and the current one read the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "sluice.v1"
NODES: Final = f"{PACKAGE}.QueueNodes"
QUEUES: Final = f"{PACKAGE}.Queues"
DESCRIPTORS: Final = "queue.binpb"


class Method(NamedTuple):
    request: Any
    response: Any
    streams: bool


class Wire:
    def __init__(self, descriptors: Path) -> None:
        """Load the descriptor set. Raises OSError, or ValueError for another kind of file."""
        raw = descriptors.read_bytes()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(raw)
        except Exception as error:  # The name of protobuf's DecodeError differs between versions.
            raise ValueError(f"{descriptors}: {error}") from error
        self._files = files
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        self._classes: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """The class of the message `sluice.v1.<name>`."""
        if name.startswith("_"):
            raise AttributeError(name)
        made = self._classes.get(name)
        if made is None:
            descriptor = self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
            if hasattr(message_factory, "GetMessageClass"):
                made = message_factory.GetMessageClass(descriptor)
            else:  # Protobuf before 4.22 has this call only.
                factory: Any = message_factory.MessageFactory(self._pool)
                made = factory.GetPrototype(descriptor)
            self._classes[name] = made
        return made

    def methods(self, service: str) -> dict[str, Method]:
        """Methods of the service `NODES` or `QUEUES`, by name."""
        return {
            method.name: Method(
                getattr(self, method.input_type.rpartition(".")[2]),
                getattr(self, method.output_type.rpartition(".")[2]),
                method.server_streaming,
            )
            for file in self._files.file
            for one in file.service
            if f"{file.package}.{one.name}" == service
            for method in one.method
        }


def find_descriptors() -> Path:
    """Path of the descriptors in an installed package, else in the checkout's build directory."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "native" / "proto" / DESCRIPTORS
    return installed if installed.is_file() else package.parent / "build" / "proto" / DESCRIPTORS
