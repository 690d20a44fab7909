"""Protobuf messages built at run time from a descriptor file.

There is no generated code, because protoc's Python output is tied to one protobuf release. A
FileDescriptorSet is not, so Debian 12's protobuf and the current one read the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Descriptors:
    """The messages and services of one descriptor file, by their full names."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, or ValueError if the file is not a descriptor set."""
        self._path = path
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        except Exception as error:  # The name of protobuf's DecodeError differs between versions.
            if isinstance(error, OSError):
                raise
            raise ValueError(f"{path}: {error}") from error
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)
        self._classes: dict[str, Any] = {}

    def message_class(self, full_name: str) -> Any:
        """The class of `package.Message`. Raises ValueError if the file is of another version."""
        if full_name not in self._classes:
            try:
                descriptor = self._pool.FindMessageTypeByName(full_name)
            except KeyError:
                raise ValueError(
                    f"{self._path} is of another version, it has no {full_name}: build or install"
                    " sluice again"
                ) from None
            if hasattr(message_factory, "GetMessageClass"):
                made = message_factory.GetMessageClass(descriptor)
            else:  # Protobuf before 4.22 has this call only.
                factory: Any = message_factory.MessageFactory(self._pool)
                made = factory.GetPrototype(descriptor)
            self._classes[full_name] = made
        return self._classes[full_name]

    def service_methods(self, service: str) -> dict[str, tuple[Any, Any, bool]]:
        """Request class, response class and whether the response is a stream, by method."""
        found = self._pool.FindServiceByName(service)
        proto = descriptor_pb2.ServiceDescriptorProto()
        found.CopyToProto(proto)  # Only recent versions of the descriptor have this field.
        streams = {method.name: method.server_streaming for method in proto.method}
        return {
            method.name: (
                self.message_class(method.input_type.full_name),
                self.message_class(method.output_type.full_name),
                streams[method.name],
            )
            for method in found.methods
        }
