"""The child process of `large`: reads reviews from standard input and writes answers to standard
output, within limits of memory and of CPU time for each."""

from __future__ import annotations

import resource
import sys
from time import process_time
from typing import BinaryIO, Final

from queuecontroller.kueueapi.crds import CONVERT_PATH, VALIDATE_PATH
from queuecontroller.server.web.large import ANSWERED, BAD, GO_ON, HEAD
from queuecontroller.server.web.reviews import BadReview, converted, judged, weighed

MAX_MEMORY_BYTES: Final = 512 << 20
MAX_CPU_S: Final = 10


def answer(path: str, body: bytes) -> tuple[int, bytes]:
    try:
        if path == CONVERT_PATH:
            return ANSWERED, converted(body)
        if path == VALIDATE_PATH:
            return ANSWERED, judged(body)
        made = weighed(body)
    except BadReview as error:
        return BAD, str(error).encode(errors="replace")
    return (GO_ON, b"") if made is None else (ANSWERED, made)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    while head := source.read(HEAD.size):
        path_length, length = HEAD.unpack(head)
        path, body = source.read(path_length).decode(), source.read(length)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(process_time()) + MAX_CPU_S, hard))
        try:
            status, text = answer(path, body)
        except MemoryError:
            return
        sink.write(HEAD.pack(status, len(text)) + text)
        sink.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    serve(sys.stdin.buffer, sys.stdout.buffer)
