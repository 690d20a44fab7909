"""Conversion between the messages about MIG of proto/sluice/v1/node.proto and our own values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodeagent.adapters.api.wire import Wire
from nodeagent.core.gpus.mig_geometry import GeometryError, parse_geometry
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.mig import (
    MigAnswer,
    MigAsk,
    MigDevice,
    MigInstance,
    MigPlace,
    MigProfile,
    MigState,
    MigView,
    Span,
)
from nodeagent.units import Bytes, GpuUuid

LONGEST_GPU = 128


def write_ask(wire: Wire, ask: MigAsk) -> Any:
    return wire.message("SetMigRequest")(
        gpu=ask.gpu, profiles=ask.profiles, disable=ask.disable, dry_run=ask.dry_run
    )


def read_ask(request: Any) -> MigAsk:
    """The request to change a card. Raises Refused if it is invalid."""
    if not request.gpu or len(request.gpu) > LONGEST_GPU:
        raise Refused(RefusalKind.INVALID, "no GPU given: name its UUID or index")
    if request.disable and request.profiles:
        raise Refused(RefusalKind.INVALID, "MIG off and instances exclude each other")
    try:
        profiles = parse_geometry(",".join(request.profiles)) if request.profiles else ()
    except GeometryError as error:
        raise Refused(RefusalKind.INVALID, str(error)) from error
    return MigAsk(request.gpu, profiles, request.disable, request.dry_run)


def write_views(wire: Wire, views: Sequence[MigView]) -> Any:
    return wire.message("ShowMigResponse")(cards=[_card(wire, view) for view in views])


def read_views(message: Any) -> list[MigView]:
    return [_read_card(one) for one in message.cards]


def write_answer(wire: Wire, answer: MigAnswer) -> Any:
    message = wire.message("SetMigResponse")(
        before=_card(wire, answer.before),
        planned=[
            wire.message("MigPlanned")(profile=one.profile, placement=_placement(wire, one.span))
            for one in answer.planned
        ],
        changed=answer.changed,
        rolled_back=answer.rolled_back,
        reset_needed=answer.reset_needed,
        failure=answer.failure,
        notes=answer.notes,
    )
    if answer.after is not None:
        message.after.CopyFrom(_card(wire, answer.after))
    return message


def read_answer(message: Any) -> MigAnswer:
    return MigAnswer(
        before=_read_card(message.before),
        after=_read_card(message.after) if message.HasField("after") else None,
        planned=tuple(MigPlace(one.profile, _span(one.placement)) for one in message.planned),
        changed=message.changed,
        rolled_back=message.rolled_back,
        reset_needed=message.reset_needed,
        failure=message.failure,
        notes=tuple(message.notes),
    )


def _card(wire: Wire, view: MigView) -> Any:
    state = view.state
    return wire.message("MigCard")(
        gpu_uuid=state.gpu,
        index=state.index,
        name=state.name,
        supported=state.supported,
        enabled=state.enabled,
        pending=state.pending,
        profiles=[
            wire.message("MigCardProfile")(
                name=one.name,
                id=one.profile_id,
                slices=one.slices,
                most=one.most,
                memory_bytes=one.memory_bytes,
                placements=[_placement(wire, span) for span in one.spans],
                fits=one.fits,
            )
            for one in state.profiles
        ],
        instances=[
            wire.message("MigCardInstance")(
                gpu_instance=one.gpu_instance,
                profile=one.profile,
                profile_id=one.profile_id,
                placement=_placement(wire, one.span),
                devices=[
                    wire.message("MigCardDevice")(
                        uuid=device.uuid,
                        compute_instance=device.compute_instance,
                        profile_id=device.profile_id,
                    )
                    for device in one.devices
                ],
            )
            for one in state.instances
        ],
        holders=view.holders,
        error=state.error,
    )


def _read_card(message: Any) -> MigView:
    """The state of a card; its processes are reported among the holders."""
    state = MigState(
        gpu=GpuUuid(message.gpu_uuid),
        index=message.index,
        name=message.name,
        supported=message.supported,
        enabled=message.enabled,
        pending=message.pending,
        error=message.error,
        profiles=tuple(
            MigProfile(
                one.name,
                one.id,
                one.slices,
                one.most,
                Bytes(one.memory_bytes),
                tuple(_span(place) for place in one.placements),
                one.fits if one.HasField("fits") else None,
            )
            for one in message.profiles
        ),
        instances=tuple(
            MigInstance(
                one.gpu_instance,
                one.profile,
                one.profile_id,
                _span(one.placement),
                tuple(
                    MigDevice(GpuUuid(device.uuid), device.compute_instance, device.profile_id)
                    for device in one.devices
                ),
            )
            for one in message.instances
        ),
    )
    return MigView(state, tuple(message.holders))


def _placement(wire: Wire, span: Span) -> Any:
    return wire.message("MigPlacement")(start=span.start, size=span.size)


def _span(message: Any) -> Span:
    return Span(message.start, message.size)
