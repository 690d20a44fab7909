"""Quota usage of a pod's resource claims.

Claims are made from templates when the pod is created, so the usage is read from the template: each
request has a class, and the mapping of the class says how many devices, or how much of a counter or
a capacity, they count for. Amounts per device come from the published ResourceSlices. If several
devices match, the largest amount of any of them counts, as in Kueue, because the device is not
chosen yet. A claim that cannot be counted is a problem with its field and reason, and is evaluated
again when templates, classes or slices change.

Amounts are whole units of the quota, rounded up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.claims.cel import Device, matches, quantity
from queuecontroller.gpushares.claims.cel_parse import CelError
from queuecontroller.gpushares.claims.mappings import DeviceClasses, Mapped, Source
from queuecontroller.gpushares.claims.published import Published, qualified, rounded
from queuecontroller.scheduler.model.objects import DeviceChoice, DeviceId
from queuecontroller.scheduler.model.selectors import Toleration
from sluicecommon.budget import Budget
from sluicecommon.kubernetes.quantity import saturate
from sluicecommon.reader import Problem, Reader, shown

MAX_CLAIMS: Final = 64
"""Claims per pod."""
MAX_STEPS: Final = 500_000
"""Steps of all selectors of one pod, over all devices: about half a second."""
MAX_REQUESTS: Final = 32
"""Requests per claim; the limit is the one of the Kubernetes API."""

MAX_ALTERNATIVES: Final = 8
"""Alternatives of one request; the limit is the one of the Kubernetes API."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """Objects of the API server that counting needs."""

    classes: DeviceClasses
    """Device classes that are counted, with their mappings; empty: no claims count."""
    template: Callable[[str, str], Document | None]
    """Look up a ResourceClaimTemplate by namespace and name."""
    device_class: Callable[[str], Document | None]
    devices: Callable[[str], Sequence[Published]]
    """Published devices of a driver."""
    matching: Matching | None = None
    """Finds the devices that a request may get; None: free devices do not matter."""
    extended: Mapping[str, Document] = field(default_factory=dict)
    """DeviceClass of each extended resource that one names."""


def claims_of(spec: Reader, namespace: str, known: Known) -> dict[str, int]:
    """Usage of one pod by quota name, besides its containers' requests. Errors are added to the
    reader's problems."""
    total: dict[str, int] = {}
    if not known.classes:
        return total
    budget = Budget(MAX_STEPS)
    given = spec.children("resourceClaims")
    if len(given) > MAX_CLAIMS:
        spec.problem("resourceClaims", f"more than {MAX_CLAIMS}", "request less in one pod")
        return {}
    for one in given:
        name = one.text("resourceClaimTemplateName")
        if one.has("resourceClaimName"):
            what = "a ResourceClaim that others made has no quota"
            one.problem("resourceClaimName", what, "name a ResourceClaimTemplate instead")
        if not name:
            continue
        where = f"ResourceClaimTemplate {shown(name)}"
        template = known.template(namespace, name)
        if template is None:
            what = f"{where} is not in namespace {namespace}"
            one.problem(
                "resourceClaimTemplateName", what, "create it; the workload is then evaluated again"
            )
            continue
        body = Reader(template, f"{one.path}: {where}", one.problems)
        devices = body.child("spec").child("spec").child("devices")
        for number, request in enumerate(devices.children("requests")[:MAX_REQUESTS]):
            _count(request, known, total, number, budget)
    return total


def _count(
    request: Reader, known: Known, total: dict[str, int], number: int, budget: Budget
) -> None:
    given = request.children("firstAvailable")
    if not given:
        exactly = request.child("exactly")
        if not exactly.flag("adminAccess"):  # Such access leaves the devices to others.
            for resource, amount in _asked_for(exactly, known, budget).items():
                total[resource] = saturate(total.get(resource, 0) + amount)
        return
    # The scheduler chooses later: the most that any of them counts for, of each resource.
    most: dict[str, int] = {}
    missing: list[Problem] = []
    for one in given[:MAX_ALTERNATIVES]:
        try:
            amounts = _asked_for(one, known, budget, missing)
        except _NoDevice:
            continue
        for resource, amount in amounts.items():
            most[resource] = max(most.get(resource, 0), amount)
    if not most:
        request.problems += missing
    for resource, amount in most.items():
        total[resource] = saturate(total.get(resource, 0) + amount)


def _asked_for(
    exactly: Reader, known: Known, budget: Budget, missing: list[Problem] | None = None
) -> dict[str, int]:
    """Amounts of one request. If `missing` is given, the problem that no device fits is added to it
    instead of the reader's, and _NoDevice is raised."""
    mode = exactly.text("allocationMode", "ExactCount")
    if mode != "ExactCount":
        what = f"{shown(mode)} has no number"
        exactly.problem("allocationMode", what, "write ExactCount and a count")
        return {}
    name = exactly.required("deviceClassName")
    mapped = known.classes.get(name)
    if mapped is None:
        what = f"DeviceClass {shown(name)} is in no mapping of the queue's configuration"
        exactly.problem("deviceClassName", what, "add it to resources.deviceClassMappings")
        return {}
    count = exactly.whole("count", 1, least=1)
    found: dict[str, int] = {}
    for resource, amount in _amounts(exactly, name, mapped, count, known, budget, missing):
        found[resource] = saturate(found.get(resource, 0) + amount)
    return found


def _amounts(
    exactly: Reader,
    name: str,
    mapped: Mapped,
    count: int,
    known: Known,
    budget: Budget,
    missing: list[Problem] | None,
) -> list[tuple[str, int]]:
    if not mapped.sources:
        return [(mapped.resource, count)]
    device_class = known.device_class(name)
    if device_class is None:
        exactly.problem("deviceClassName", f"there is no DeviceClass {shown(name)}", "make it")
        return []
    inner = Reader(device_class, f"DeviceClass {name}", exactly.problems)
    by_class = _selectors(inner.child("spec"))
    by_request = _selectors(exactly)
    tolerations = _tolerations(exactly)
    found = []
    for resource, source in mapped.sources:
        try:
            devices = [
                one
                for one in known.devices(source.driver)
                if _is_tolerated(one, tolerations)
                and all(
                    _is_meant(one.device, selectors, what, budget)
                    for selectors, what in (
                        ((source.selector,), "the mapping's deviceSelector"),
                        (by_class, f"the selectors of DeviceClass {name}"),
                        (by_request, "the selectors"),
                    )
                )
            ]
            amount = _amount(exactly, source, devices, count)
        except _Uncounted as error:
            exactly.problem("", f"{error} ({source.driver}, {source.name})", error.fix)
            if missing is not None and isinstance(error, _NoDevice):
                missing.append(exactly.problems.pop())
                raise
            continue
        found.append((resource, saturate(amount * count)))
    return found


class _Uncounted(Exception):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


class _NoDevice(_Uncounted):
    """No published device can be what is requested; another alternative may do."""


def _selectors(reader: Reader) -> tuple[str, ...]:
    return tuple(one.child("cel").required("expression") for one in reader.children("selectors"))


def class_selectors(device_class: Document) -> tuple[str, ...]:
    """Return the expressions that a class requires of its devices."""
    return _selectors(Reader(device_class).child("spec"))


def _tolerations(reader: Reader) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            one.text("key"), one.text("operator", "Equal"), one.text("value"), one.text("effect")
        )
        for one in reader.children("tolerations")
    )


class Matching:
    """Published devices by selectors and tolerations, each combination evaluated once."""

    def __init__(self, devices: Sequence[Published]) -> None:
        self._devices = devices
        self._found: dict[Hashable, frozenset[DeviceId] | None] = {}

    def find(
        self, selectors: tuple[str, ...], tolerations: tuple[Toleration, ...]
    ) -> frozenset[DeviceId] | None:
        """Return the devices that all selectors match; None if one cannot be evaluated."""
        key = (selectors, tolerations)
        if key not in self._found:
            budget = Budget(MAX_STEPS)
            try:
                self._found[key] = frozenset(
                    one.identity
                    for one in self._devices
                    if _is_tolerated(one, tolerations)
                    and _is_meant(one.device, selectors, "", budget)
                )
            except _Uncounted:
                self._found[key] = None
        return self._found[key]


def device_requests(
    spec: Reader, namespace: str, known: Known
) -> tuple[tuple[DeviceChoice, ...], ...]:
    """Requests of one pod for devices. One that cannot be evaluated is left out: `claims_of` has
    its problem, or kube-scheduler decides."""
    if known.matching is None:
        return ()
    found = []
    pod = Reader({"resourceClaims": spec.raw("resourceClaims")})  # its problems are known
    for one in pod.children("resourceClaims")[:MAX_CLAIMS]:
        name = one.text("resourceClaimTemplateName")
        template = known.template(namespace, name) if name else None
        if template is None:
            continue
        devices = Reader(template).child("spec").child("spec").child("devices")
        for request in devices.children("requests")[:MAX_REQUESTS]:
            choices = _choices(request, known, known.matching)
            if choices and not devices.problems:
                found.append(choices)
    return tuple(found)


def _choices(request: Reader, known: Known, matching: Matching) -> tuple[DeviceChoice, ...]:
    """Choices of one request; none if one of them cannot be evaluated."""
    exactly = request.child("exactly")
    given = request.children("firstAvailable")[:MAX_ALTERNATIVES]
    if not given and exactly.flag("adminAccess"):
        return ()
    made = []
    for one in given or [exactly]:
        device_class = known.device_class(one.text("deviceClassName"))
        if device_class is None or one.text("allocationMode", "ExactCount") != "ExactCount":
            return ()
        selectors = (*class_selectors(device_class), *_selectors(one))
        devices = matching.find(selectors, _tolerations(one))
        capacity = one.child("capacity").child("requests")
        try:
            asked = tuple(
                (key, quantity(capacity.raw(key)).thousandths) for key in capacity.names()
            )
        except CelError:
            return ()
        if devices is None:
            return ()
        made.append(DeviceChoice(devices, one.whole("count", 1, least=1), asked))
    return tuple(made)


def _is_tolerated(one: Published, tolerations: Sequence[Toleration]) -> bool:
    return all(any(each.tolerates(taint) for each in tolerations) for taint in one.taints)


def _is_meant(device: Device, selectors: Sequence[str], what: str, budget: Budget) -> bool:
    for one in selectors:
        try:
            if not matches(one, device, budget):
                return False
        except CelError as error:
            raise _Uncounted(
                f"{what} cannot be evaluated: {error}", "write it another way"
            ) from None
    return True


def _amount(exactly: Reader, source: Source, devices: Sequence[Published], count: int) -> int:
    """Amount for one device. Raises _Uncounted."""
    most = _most_on_a_node(devices)
    if most < count:
        where = " on one node" if most < len(devices) else ""
        what = f"{most} published devices{where} match, {count} are requested"
        raise _NoDevice(what, "request less, or wait until they are published")
    if source.counter:
        found = [
            max(values)
            for one in devices
            if (values := [amount for _, name, amount in one.counters if name == source.name])
        ]
        if not found:
            raise _Uncounted("no matching device consumes that counter", "correct the mapping")
    else:
        found = _of_capacity(exactly, source, devices)
    return -(-max(0, *found) // 1000)


def _most_on_a_node(devices: Sequence[Published]) -> int:
    """The largest number of the devices that one node has: those of a claim are of one node."""
    on_nodes = Counter(one.node for one in devices)
    anywhere = on_nodes.pop("", 0)
    return anywhere + max(on_nodes.values(), default=0)


def _of_capacity(exactly: Reader, source: Source, devices: Sequence[Published]) -> list[int]:
    domain, name = qualified(source.name, source.driver)
    asked = _asked(exactly, domain, name, source.driver)
    having = [one for one in devices if name in one.device.capacity.get(domain, {})]
    if not having:
        raise _Uncounted("no matching device has that capacity", "correct the mapping")
    found = []
    for one in having:
        policy = one.policies[domain, name]
        amount = asked
        if amount is None:
            amount = policy.default
        if amount is None:
            amount = one.device.capacity[domain][name].thousandths
        fitting = rounded(amount, policy)
        if fitting is not None and fitting <= one.device.capacity[domain][name].thousandths:
            found.append(fitting)
    if not found:
        raise _NoDevice("no matching device has enough capacity", "request less")
    return found


def _asked(exactly: Reader, domain: str, name: str, driver: str) -> int | None:
    """The requested capacity in thousandths; None: the device's default applies."""
    given = exactly.child("capacity").child("requests")
    for key in given.names():
        if qualified(key, driver) == (domain, name):
            try:
                return quantity(given.raw(key)).thousandths
            except CelError as error:
                raise _Uncounted(f"capacity: {error}", "write a quantity") from None
    return None
