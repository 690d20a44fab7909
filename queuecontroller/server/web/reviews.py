"""Requests of the API server to a webhook and the responses: ConversionReview and AdmissionReview,
bytes to bytes.

A request that cannot be parsed raises BadReview: it was not sent by an API server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from queuecontroller.gpushares.admission.pod_review import NO_CHANGE, Answer, Question
from queuecontroller.kueueapi.conversion import ConversionError, convert
from queuecontroller.kueueapi.manifests.validating import problems_of
from sluicecommon.reader import Problem, shown

MAX_OBJECTS: Final = 100_000
LARGE_BYTES: Final = 256 << 10
LARGE_VALUES: Final = 20_000
"""Reviews with more bytes or values than these take the event loop more than a few milliseconds."""
MAX_VALUES: Final = 50_000
"""Limit of the values in an admission review. A pod of 1.5 MiB has as many."""
LONGEST_MESSAGE: Final = 4 << 10
"""Characters; the message is shown in a terminal."""


class BadReview(ValueError):
    """A review request is invalid; the text is one line with the reason."""


def is_large(body: bytes) -> bool:
    """True if parsing a review may take more than a few milliseconds. Values are counted from
    above, by the characters that begin or separate them."""
    if len(body) > LARGE_BYTES:
        return True
    return sum(body.count(one) for one in (b",", b"[", b"{")) > LARGE_VALUES


def weighed(body: bytes) -> bytes | None:
    """The refusal of an admission review with more than MAX_VALUES values, else None. It is no
    HTTP error: where a webhook's failure is ignored, the object would be written unchecked."""
    review, request = _read(body, "AdmissionReview", "admission.k8s.io/v1")
    number, left = 0, [review]
    while left:
        one: Any = left.pop()
        number += 1
        if number + len(left) > MAX_VALUES:
            why = Problem("", f"the object has more than {MAX_VALUES} values", "")
            return _answer(review, request, _no([why]))
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
    return None


def converted(body: bytes) -> bytes:
    review, request = _read(body, "ConversionReview", "apiextensions.k8s.io/v1")
    objects, wanted = request.get("objects"), request.get("desiredAPIVersion")
    if not isinstance(objects, list) or len(objects) > MAX_OBJECTS:
        raise BadReview(f"request.objects: expected a list of at most {MAX_OBJECTS}")
    made: list[dict[str, Any]] = []
    result: dict[str, Any] = {"status": "Success"}
    for one in objects:
        try:
            if not isinstance(one, dict):
                raise ConversionError(f"expected an object, got {shown(one)}")
            made.append(convert(one, str(wanted)))
        except (ConversionError, RecursionError) as error:
            made = []
            result = {"status": "Failure", "message": f"{_name(one)}: {error}"[:LONGEST_MESSAGE]}
            break
    return _answer(review, request, {"result": result, "convertedObjects": made})


def judged(body: bytes) -> bytes:
    review, request = _read(body, "AdmissionReview", "admission.k8s.io/v1")
    document, old = request.get("object"), request.get("oldObject")
    if not isinstance(document, dict) or not isinstance(old, dict | None):
        raise BadReview("request.object: expected an object")
    problems = problems_of(document, old)
    if not problems:
        return _answer(review, request, {"allowed": True})
    return _answer(review, request, _no(problems))


_INVALID: Final = {"code": 422, "reason": "Invalid"}
_FORBIDDEN: Final = {"code": 403, "reason": "Forbidden"}
"""Status of Kueue's webhooks; a schema's refusals are 422 in both."""


def _no(problems: Sequence[Problem], status: Mapping[str, object] = _FORBIDDEN) -> dict[str, Any]:
    return {"allowed": False, "status": {**status, "message": message_of(problems)}}


def patched(
    body: bytes,
    patch_of: Callable[[dict[str, Any], dict[str, Any] | None, str], bytes],
    problems_of_change: Callable[[dict[str, Any], dict[str, Any] | None, str], Sequence[Problem]],
) -> bytes:
    """Answer an AdmissionReview of a mutating webhook. `patch_of` returns the JSON patch of an
    object written in a namespace, given the object that it replaces; one for which
    `problems_of_change` returns problems is refused."""
    review, request = _read(body, "AdmissionReview", "admission.k8s.io/v1")
    document = request.get("object")
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise BadReview("request.object: expected an object")
    before = request.get("oldObject")
    old = before if isinstance(before, dict) else None
    namespace = str(request.get("namespace") or "")
    if problems := problems_of_change(document, old, namespace):
        return _answer(review, request, _no(problems))
    patch = patch_of(document, old, namespace)
    if patch == b"[]":
        return _answer(review, request, {"allowed": True})
    made = {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return _answer(review, request, {"allowed": True, **made})


def reviewed(body: bytes, judge: Callable[[Question], Answer]) -> bytes:
    """Answer an AdmissionReview with the decision of `judge`."""
    review, request = _read(body, "AdmissionReview", "admission.k8s.io/v1")
    document, old = request.get("object"), request.get("oldObject")
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise BadReview("request.object: expected an object")
    user = request.get("userInfo")
    answer = judge(
        Question(
            document,
            old if isinstance(old, dict) else None,
            str(request.get("namespace") or ""),
            str(user.get("username") or "") if isinstance(user, dict) else "",
            str(request["uid"]),
            request.get("dryRun") is True,
        )
    )
    made: dict[str, Any] = {"warnings": list(answer.warnings)} if answer.warnings else {}
    if answer.problems:
        return _answer(review, request, made | _no(answer.problems, _INVALID))
    made["allowed"] = True
    if answer.patch != NO_CHANGE:
        patch = base64.b64encode(answer.patch).decode()
        made |= {"patchType": "JSONPatch", "patch": patch}
    return _answer(review, request, made)


def message_of(problems: Sequence[Problem]) -> str:
    lines = [f"{one} (fix: {one.fix})" if one.fix else str(one) for one in problems]
    text = "; ".join(lines)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def _read(body: bytes, kind: str, version: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadReview(f"is not JSON: {str(error)[:200]}") from error
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise BadReview("has no request with a uid")
    if (review.get("kind"), review.get("apiVersion")) != (kind, version):
        raise BadReview(f"expected {kind} of {version}")
    return review, request


def _answer(review: dict[str, Any], request: dict[str, Any], response: dict[str, Any]) -> bytes:
    answer = {
        "apiVersion": review["apiVersion"],
        "kind": review["kind"],
        "response": {"uid": request["uid"], **response},
    }
    return json.dumps(answer, separators=(",", ":")).encode()


def _name(one: object) -> str:
    head = one.get("metadata") if isinstance(one, dict) else None
    name = head.get("name") if isinstance(head, dict) else None
    return str(name)[:253] if name else "an object without a name"
