"""Turns our functions into gRPC handlers, and our errors into status codes; one table for both
services."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import grpc

from queuecontroller.manifests.reader import ManifestError
from queuecontroller.records import StoreLost
from queuecontroller.service.nodes import StaleEpoch, Superseded
from queuecontroller.service.shell import Shell, TooFarBehind
from queuecontroller.service.submission import Refused

from .wire import Wire

log = logging.getLogger(__name__)

MOST_DETAILS: Final = 4000
"""Characters of an error text: it travels in a header, which gRPC limits to 8 KiB."""

_REFUSALS: Final = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "exists": grpc.StatusCode.ALREADY_EXISTS,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "denied": grpc.StatusCode.PERMISSION_DENIED,
}

Unary = Callable[[Any, Any], Any]
"""(request, gRPC context) -> response."""
Streaming = Callable[[Any, Any], AsyncGenerator[Any, None]]


def status_of(error: Exception) -> tuple[grpc.StatusCode, str] | None:
    """None for what is a defect of ours."""
    if isinstance(error, Refused):
        return _REFUSALS[error.kind], str(error)
    if isinstance(error, ManifestError):
        return grpc.StatusCode.INVALID_ARGUMENT, "\n".join(map(str, error.problems))
    if isinstance(error, StaleEpoch):
        return grpc.StatusCode.ABORTED, str(error)
    if isinstance(error, TooFarBehind):
        return grpc.StatusCode.OUT_OF_RANGE, str(error)
    if isinstance(error, Superseded | StoreLost):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return None


def handlers(
    wire: Wire,
    shell: Shell,
    service: str,
    unary: dict[str, Unary],
    streaming: dict[str, Streaming],
) -> Any:
    """A generic handler for every method of the service."""
    made = {}
    make: Any
    call: Any
    for name, method in wire.methods(service).items():
        if method.streams:
            make, call = grpc.unary_stream_rpc_method_handler, _stream(shell, streaming[name])
        else:
            make, call = grpc.unary_unary_rpc_method_handler, _answer(shell, unary[name])
        made[name] = make(
            call,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, made)


async def _abort(context: Any, error: Exception) -> None:
    found = status_of(error)
    if found is None:
        log.error("a call failed", exc_info=error)
        found = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: see the controller's log"
    code, details = found
    await context.abort(code, details[:MOST_DETAILS])


async def _check_ready(shell: Shell, context: Any) -> None:
    if shell.why_not_ready:
        await context.abort(grpc.StatusCode.UNAVAILABLE, shell.why_not_ready)


def _answer(shell: Shell, call: Unary) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: Any) -> Any:
        await _check_ready(shell, context)
        try:
            return call(request, context)
        except Exception as error:  # every one becomes a status; a defect is logged
            return await _abort(context, error)

    return answer


def _stream(shell: Shell, call: Streaming) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
    async def stream(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        await _check_ready(shell, context)
        try:
            async with contextlib.aclosing(call(request, context)) as messages:
                async for message in messages:
                    yield message
        except Exception as error:
            await _abort(context, error)

    return stream
