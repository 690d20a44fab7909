"""Admission and conversion requests as an API server sends them to a webhook."""

from __future__ import annotations

import json
from typing import Any

from queuecontroller.kueueapi import GROUP


def made(kind: str, spec: object, version: str = "v1beta2", **more: object) -> dict[str, Any]:
    head = {"name": "x", "namespace": "n"}
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": head,
        "spec": spec,
        **more,
    }


def admission(document: object, old: object = None) -> bytes:
    request = {"uid": "7", "object": document, "oldObject": old}
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    ).encode()


def conversion(objects: object, wanted: object) -> bytes:
    request = {"uid": "7", "objects": objects, "desiredAPIVersion": wanted}
    return json.dumps(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
    ).encode()
