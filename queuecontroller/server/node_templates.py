"""Reads the file of node templates, for requests for new nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from queuecontroller.cluster.autoscaling.node_requests import Autoscaling
from queuecontroller.cluster.autoscaling.templates import read_templates
from queuecontroller.server.config import AutoscalingSettings, ConfigError
from sluicecommon import yaml_text
from sluicecommon.hami.names import ResourceNames


def autoscaling_of(given: AutoscalingSettings, names: ResourceNames) -> Autoscaling | None:
    """The settings with the templates, which are bare or in a ConfigMap; None if no nodes are
    requested. Raises ConfigError, ManifestError, OSError."""
    if given.requests == "none":
        return None
    path = Path(given.templates)
    try:
        documents = [*_documents(path.read_text(encoding="utf-8"))]
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from error
    return Autoscaling(
        read_templates(documents, names, str(path)),
        given.requests == "pods",
        given.provisioning_class,
        given.max_nodes,
        given.waits_s,
        given.every_s,
        given.scale_down_hints,
    )


def _documents(text: str) -> Iterator[object]:
    """Raises ValueError."""
    for document in yaml_text.read_all(text):
        if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
            for each in (document.get("data") or {}).values():
                yield from yaml_text.read_all(str(each))
        else:
            yield document
