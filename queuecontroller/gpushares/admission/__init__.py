"""Admission of plain pods that request parts of devices: the changes and refusals at creation, and
the quota of a namespace on device memory and cores. Pure functions: pods in, verdicts out."""

from __future__ import annotations

from queuecontroller.gpushares.admission.as_claims import share_of, template_of, templates_of
from queuecontroller.gpushares.admission.json_patch import patch
from queuecontroller.gpushares.admission.pod_review import Answer, Question, answer
from queuecontroller.gpushares.admission.pod_verdict import Rules, Verdict, admit, refused_change
from queuecontroller.gpushares.admission.quota import PodUse, Quotas
from queuecontroller.gpushares.admission.usage import amounts, counted, is_over, use_of
from queuecontroller.gpushares.admission.visible_devices import VisibleDevices

__all__ = [
    "Answer",
    "PodUse",
    "Question",
    "Quotas",
    "Rules",
    "Verdict",
    "VisibleDevices",
    "admit",
    "amounts",
    "answer",
    "counted",
    "is_over",
    "patch",
    "refused_change",
    "share_of",
    "template_of",
    "templates_of",
    "use_of",
]
