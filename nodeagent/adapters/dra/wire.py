"""Conversion between the messages of DRA's API to the kubelet and our own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodeagent.adapters.host.descriptors import Descriptors
from nodeagent.ports.dra.claims import ClaimRef, ClaimUid, DeviceHealth, PreparedDevice

REGISTRATION: Final = "pluginregistration.Registration"
TYPE: Final = "DRAPlugin"
_PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra"
VERSIONS: Final = ("v1", "v1beta1")
"""Newest first, because the kubelet uses the first version that it supports."""
HEALTH_VERSIONS: Final = ("v1", "v1alpha1")
"""Newest first. A kubelet of 1.37 and later uses an announced version, 1.36 always v1alpha1."""
LONGEST: Final = 253
MAX_CLAIMS: Final = 1024
"""Maximum claims of one call; a pod has 32 at most."""


def service(version: str) -> str:
    return f"{_PACKAGE}.{version}.DRAPlugin"


def announced(version: str) -> str:
    """The service as it is named in the registration."""
    return f"{version}.DRAPlugin"


def health_service(version: str) -> str:
    """The health service as it is named in the registration."""
    return f"{version}.DRAResourceHealth"


class Unreadable(ValueError):
    """The request is not one that a kubelet makes."""


class DraWire(Descriptors):
    """The message classes of kubelet.binpb."""

    def message(self, version: str, name: str) -> Any:
        return self.message_class(f"{_PACKAGE}.{version}.{name}")

    def write_info(self, name: str, endpoint: str) -> Any:
        return self.message_class("pluginregistration.PluginInfo")(
            type=TYPE,
            name=name,
            endpoint=endpoint,
            supported_versions=[
                *map(announced, VERSIONS),
                *map(health_service, HEALTH_VERSIONS),
            ],
        )

    def read_claims(self, request: Any) -> list[ClaimRef]:
        """The claims of a request. Raises Unreadable."""
        if len(request.claims) > MAX_CLAIMS:
            raise Unreadable(f"{len(request.claims)} claims in one call (limit {MAX_CLAIMS})")
        found = []
        for one in request.claims:
            for field in (one.namespace, one.name, one.uid):
                if not field or len(field) > LONGEST or not field.isprintable() or "/" in field:
                    raise Unreadable(f"invalid name of a claim: {field[:64]!r}")
            found.append(ClaimRef(one.namespace, one.name, ClaimUid(one.uid)))
        return found

    def write_prepared(
        self, version: str, answers: Mapping[ClaimUid, Sequence[PreparedDevice] | str]
    ) -> Any:
        """Answer with each claim's devices, or with the error."""
        response = self.message(version, "NodePrepareResourcesResponse")()
        for uid, answer in answers.items():
            one = response.claims[uid]
            if isinstance(answer, str):
                one.error = answer
                continue
            for device in answer:
                given = one.devices.add(
                    request_names=[device.request] if device.request else [],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_devices,
                )
                if device.share_id and version != "v1beta1":
                    given.share_id = device.share_id
        return response

    def write_unprepared(self, version: str, answers: Mapping[ClaimUid, str]) -> Any:
        """Answer with each claim's error; empty if it was unprepared."""
        response = self.message(version, "NodeUnprepareResourcesResponse")()
        for uid, why in answers.items():
            response.claims[uid].error = why
        return response

    def write_health(
        self, version: str, devices: Sequence[DeviceHealth], told_again_s: float
    ) -> Any:
        health = self.message_class(f"{version}.DeviceHealth")
        identifier = self.message_class(f"{version}.DeviceIdentifier")
        return self.message_class(f"{version}.NodeWatchResourcesResponse")(
            devices=[
                health(
                    device=identifier(pool_name=one.pool, device_name=one.device),
                    health=1 if one.healthy else 2,
                    last_updated_time=int(one.at_unix_s),
                    health_check_timeout_seconds=int(3 * told_again_s),
                    message=one.why[:1000],
                )
                for one in devices
            ]
        )
