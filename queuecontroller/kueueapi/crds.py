"""The table as CustomResourceDefinitions.

Structural schemas with little in them: types, bounds, choices, keys of lists, defaults. CEL only
where a rule must hold even if no webhook answers, and never in a Workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, assert_never

from queuecontroller.kueueapi.fields import (
    STORED,
    Amount,
    Column,
    Field,
    Fields,
    Flag,
    Kind,
    ListOf,
    MapOf,
    PodTemplate,
    Rule,
    Text,
    Time,
    Type,
    Version,
    Whole,
)
from queuecontroller.kueueapi.table import ALPHA_KINDS, GROUP, KINDS

CONVERT_PATH: Final = "/convert"
VALIDATE_PATH: Final = "/validate"
VALIDATE_S: Final = 5
"""Seconds. An answer takes a millisecond; an unavailable webhook must not delay a user for long."""
AMOUNT: Final = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$"
"""A quantity that is not negative."""
AMOUNT_OR_AUTO: Final = f"^auto$|{AMOUNT}"
LONGEST_AMOUNT: Final = 256

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Webhook:
    """Endpoint of the conversion webhook: a Service, or a URL outside the cluster."""

    ca_bundle: str = ""
    """PEM in base64; empty: filled in later, by cert-manager or by hand."""
    url: str = ""
    """https://HOST:PORT, instead of the Service."""
    namespace: str = "sluice"
    service: str = "sluice-queue-webhooks"
    port: int = 443
    word: str = ""
    """Last part of every path, without which the webhook server refuses a request. Empty in
    generated manifests, which then have no path: the controller writes it when it registers."""

    def client(self, path: str) -> Schema:
        """The webhook's clientConfig, as webhooks of all kinds have it."""
        if self.word:
            path = f"{path}/{self.word}"
        if self.url:
            where: Schema = {"url": self.url + path}
        else:
            service: Schema = {"namespace": self.namespace, "name": self.service}
            if self.word:
                service["path"] = path
            where = {"service": {**service, "port": self.port}}
        return {**where, "caBundle": self.ca_bundle} if self.ca_bundle else where


def definitions(webhook: Webhook) -> list[Schema]:
    return [definition(kind, webhook) for kind in (*KINDS.values(), *ALPHA_KINDS)]


def validation(webhook: Webhook, unless_by: str = "") -> Schema:
    """The validating webhook, without whose answer none of these objects is stored. `unless_by`:
    user name of a service account whose writes are not validated."""
    rules = [
        {
            "apiGroups": [GROUP],
            "apiVersions": sorted({str(one) for kind in KINDS.values() for one in kind.versions}),
            "operations": ["CREATE", "UPDATE"],
            "resources": sorted([*(kind.plural for kind in KINDS.values()), "workloads/status"]),
            "scope": "*",
        }
    ]
    asked: Schema = {
        "name": "objects.kueue.sluice.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": webhook.client(VALIDATE_PATH),
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": VALIDATE_S,
        "rules": rules,
    }
    if unless_by:
        expression = f"request.userInfo.username != '{unless_by}'"
        asked["matchConditions"] = [{"name": "by-others", "expression": expression}]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "sluice-kueue-api", "labels": {"app.kubernetes.io/part-of": "sluice"}},
        "webhooks": [asked],
    }


def definition(kind: Kind, webhook: Webhook) -> Schema:
    names: Schema = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "categories": ["kueue"],
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "sluice"},
            # Without this annotation the API server rejects definitions in *.k8s.io that are not
            # the Kubernetes project's own.
            "annotations": {"api-approved.kubernetes.io": "unapproved, Kueue's API on Sluice"},
        },
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            **({"conversion": _conversion(webhook)} if len(kind.versions) > 1 else {}),
            "versions": [_version(kind, version) for version in kind.versions],
        },
    }


def _conversion(webhook: Webhook) -> Schema:
    return {
        "strategy": "Webhook",
        "webhook": {
            "clientConfig": webhook.client(CONVERT_PATH),
            "conversionReviewVersions": ["v1"],
        },
    }


def _version(kind: Kind, version: Version) -> Schema:
    """A version of a kind; the only one has the newest form of the fields that others have too."""
    stored = kind.versions[-1]
    schema = _fields(kind.fields, STORED if version is stored else version)
    schema["description"] = kind.text
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": "Group and version of this form."},
        "kind": {"type": "string", "description": "The kind of object."},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    made: Schema = {
        "name": str(version),
        "served": True,
        "storage": version is stored,
        "schema": {"openAPIV3Schema": schema},
    }
    if version is not stored:
        made["deprecated"] = True
        made["deprecationWarning"] = f"{GROUP}/{version} {kind.name}: write {GROUP}/{STORED}"
    if kind.has_status:
        made["subresources"] = {"status": {}}
    if kind.columns:
        old = version is not stored
        made["additionalPrinterColumns"] = [_column(one, old) for one in kind.columns]
    return made


def _column(column: Column, old: bool) -> Schema:
    made: Schema = {
        "name": column.name,
        "type": column.type,
        "description": column.text,
        "jsonPath": column.old_path if old and column.old_path else column.path,
    }
    return {**made, "priority": 1} if column.wide else made


def _fields(fields: Fields, version: Version) -> Schema:
    here = {name: one for name, one in fields.of.items() if version in one.versions}
    made: Schema = {
        "type": "object",
        "properties": {name: _field(one, version) for name, one in here.items()},
    }
    if required := sorted(name for name, one in here.items() if one.required):
        made["required"] = required
    if fields.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    return _with_rules(made, fields.rules)


def _field(field: Field, version: Version) -> Schema:
    made = {"description": field.text, **schema_of(field.type, version)}
    is_text = made.get("type") == "string" and "enum" not in made
    if field.required and is_text and field.default != "" and not may_be_empty(field):
        made["minLength"] = 1
    old = version is not STORED and field.old_default is not None
    default = field.old_default if old else field.default
    if default is not None:
        made["default"] = default
    return _with_rules(made, field.rules)


def may_be_empty(field: Field) -> bool:
    return isinstance(field.type, Text) and field.type.may_be_empty


def _with_rules(made: Schema, rules: tuple[Rule, ...]) -> Schema:
    if rules:
        made["x-kubernetes-validations"] = [
            {"rule": one.expression, "message": one.message} for one in rules
        ]
    return made


def schema_of(type_: Type, version: Version) -> Schema:
    match type_:
        case Text():
            return _text(type_, version)
        case Whole():
            return {
                "type": "integer",
                "format": "int64" if type_.wide else "int32",
                **({} if type_.wide and type_.least < 0 else {"minimum": type_.least}),
                **({} if type_.most >= (1 << 31) - 1 else {"maximum": type_.most}),
            }
        case Flag():
            return {"type": "boolean"}
        case Amount():
            return {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
                "pattern": AMOUNT_OR_AUTO if type_.auto else AMOUNT,
                "maxLength": LONGEST_AMOUNT,
            }
        case Time():
            return {"type": "string", "format": "date-time"}
        case PodTemplate():
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case Fields():
            return _fields(type_, version)
        case ListOf():
            return _list(type_, version)
        case MapOf():
            return {
                "type": "object",
                "additionalProperties": schema_of(type_.item, version),
                "maxProperties": type_.most,
                **({"x-kubernetes-map-type": "atomic"} if type_.atomic else {}),
            }
        case _:
            assert_never(type_)


def _text(text: Text, version: Version) -> Schema:
    made: Schema = {"type": "string"}
    if text.choices:
        old = () if version is STORED else text.old_choices
        made["enum"] = sorted({*text.choices, *old})
    if text.pattern:
        made["pattern"] = text.pattern
    if text.longest:
        made["maxLength"] = text.longest
    return made


def _list(list_: ListOf, version: Version) -> Schema:
    made: Schema = {
        "type": "array",
        "items": schema_of(list_.item, version),
        "maxItems": list_.most,
    }
    if list_.least:
        made["minItems"] = list_.least
    if list_.keys and not list_.atomic:
        made["x-kubernetes-list-type"] = "map"
        made["x-kubernetes-list-map-keys"] = list(list_.keys)
    else:
        unique = list_.unique and not list_.atomic
        made["x-kubernetes-list-type"] = "set" if unique else "atomic"
    return made
