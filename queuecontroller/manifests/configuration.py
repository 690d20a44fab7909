"""Kueue's Configuration: the part of it that changes what workloads count for."""

from __future__ import annotations

from queuecontroller.engine.quantities import QuantityError, parse_amount
from queuecontroller.engine.transformations import Strategy, Transformation, Transformations

from .reader import Reader, read


def read_configuration(value: object, path: str = "Configuration") -> Transformations:
    """Only `resources` is read; the rest configures Kueue's own processes."""
    return read(_configuration, value, path)


def _configuration(reader: Reader) -> Transformations:
    resources = reader.child("resources")
    rules = tuple(_rule(one) for one in resources.children("transformations"))
    prefixes = resources.texts("excludeResourcePrefixes")
    resources.ignore("deviceClassMappings")
    resources.done()
    reader.ignore(*reader.names())
    return Transformations(rules, prefixes)


def _rule(reader: Reader) -> Transformation:
    outputs = reader.child("outputs")
    factors = {}
    for name in outputs.names():
        try:
            factors[name] = parse_amount(name, outputs.raw(name))
        except QuantityError as error:
            outputs.problem(name, str(error))
    rule = Transformation(
        input=reader.required("input"),
        strategy=reader.choice("strategy", Strategy, Strategy.RETAIN, {}),
        outputs=factors,
        multiply_by=reader.optional_text("multiplyBy"),
    )
    reader.done()
    return rule
