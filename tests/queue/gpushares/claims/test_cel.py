"""Selectors of devices, as Kubernetes' own documentation writes them, and hostile ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.gpushares.claims.cel import (
    MAX_CACHED,
    MAX_STEPS,
    Device,
    ParsedExpressions,
    check,
    matches,
    quantity,
    version,
)
from queuecontroller.gpushares.claims.cel_parse import CelError
from sluicecommon.budget import Budget

DEVICE = Device(
    driver="sluice.dev",
    attributes={
        "sluice.dev": {
            "type": "gpu",
            "index": 0,
            "architecture": "Hopper",
            "driverVersion": version("570.86.15"),
            "profiles": ["1g.10gb", "3g.40gb"],
            "healthy": True,
        }
    },
    capacity={"sluice.dev": {"memory": quantity("80Gi"), "cores": quantity("100")}},
    shared=True,
)
A = 'device.attributes["sluice.dev"]'
C = 'device.capacity["sluice.dev"]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('device.driver == "sluice.dev"', True),
        ("device.driver == 'other.dev'", False),
        ("device.allowMultipleAllocations", True),
        (f'device.driver == "sluice.dev" && {A}.type == "gpu"', True),
        (f"{A}.index == 0", True),
        (f"!({A}.index > 0) && -1 < {A}.index", True),
        (f'{A}.architecture in ["Ampere", "Hopper"]', True),
        (f'{A}.architecture.startsWith("Hop") && {A}.architecture.lowerAscii() == "hopper"', True),
        (f'{C}.memory.compareTo(quantity("40Gi")) >= 0', True),
        (f'{C}.memory.isLessThan(quantity("80Gi"))', False),
        (f'{C}.memory == quantity("81920Mi")', True),
        (f'{A}.driverVersion.isGreaterThan(semver("570.0.0"))', True),
        (f'{A}.driverVersion.isLessThan(semver("570.86.15-rc.1"))', False),
        (f"{A}.driverVersion.major() == 570", True),
        (f"has({A}.numa)", False),
        (f"has({A}.index)", True),
        ('has(device.attributes["else.where"].index)', False),
        (f"{A}.?numa.orValue(3) == 3", True),
        (f"{A}[?'index'].hasValue()", True),
        (f"{A}.profiles.exists(p, p.endsWith('40gb'))", True),
        (f"{A}.profiles.all(p, p.startsWith('1g'))", False),
        (f"cel.bind(a, {A}, a.index == 0 && a.healthy)", True),
        (f'{A}.index == 0 ? {A}.type == "gpu" : false', True),
        # One side that decides is enough, also where the other has no answer.
        (f"false && {A}.numa == 1", False),
        (f"{A}.numa == 1 || true", True),
        ("1 + 2 == 3 && 'a' + 'b' == 'ab'", True),
    ],
)
def test_a_selector_means(text: str, expected: bool) -> None:
    assert check(text) == ""
    assert matches(text, DEVICE) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{A}.numa == 1", "no such key: numa"),
        ("device.name == 'x'", "device has no name; it has driver"),
        ("dev.driver == 'x'", "dev is not known; there is device"),
        (f"{A}.type.matches('(a+)+b')", "function matches of text with 1 arguments is not known"),
        (f"{A}.type == 1", "text is compared with a number"),
        (f'{C}.memory > quantity("1Gi")', "a quantity has no >; use compareTo"),
        (
            'quantity("lots") == quantity("1")',
            "expected a quantity such as 1, 500m, 1.5, 2Gi or 1e3, got 'lots'",
        ),
        ('semver("1.2") == semver("1.2.0")', "expected a version such as 1.2.3, got '1.2'"),
        (f"{A}.type", "evaluates to text, not true or false"),
        ("device.driver ==", "a value is expected before 'the end'"),
        ("device.driver == 'a' )", "unexpected ')'"),
        ("a ; b", "is not supported"),
        ("true ? false", "':' is expected"),
    ],
)
def test_what_has_no_answer_is_said_by_its_name(text: str, said: str) -> None:
    with pytest.raises(CelError) as raised:
        matches(text, DEVICE)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "true" + ")" * 5000,
        "!" * 9000 + "true",
        " || ".join(["false"] * 1500),
        "".join(f"cel.bind(a{n}, {'[1]' if not n else f'a{n - 1} + a{n - 1}'}, " for n in range(40))
        + "true"
        + ")" * 40,
        "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c,"
        "[1,2,3,4,5,6,7,8].all(d, [1,2,3,4,5,6,7,8].all(e, a + b + c + d + e > 0)))))",
        "x" * 20_000,
    ],
    ids=["brackets", "nots", "ors", "doubled lists", "loops in loops", "too long"],
)
def test_a_hostile_one_ends_soon(text: str) -> None:
    begin_s = time.process_time()
    with pytest.raises(CelError):
        matches(text, DEVICE)
    assert time.process_time() - begin_s < 2


def nested(name: str, end: str) -> str:
    """Lists of fifty that share their parts, eleven deep: 50^11 values in 2 KiB."""
    text = ""
    for n in range(11):
        inside = "1" if not n else f"{name}{n - 1}"
        text += f"cel.bind({name}{n},[{','.join([inside] * 50)}],"
    return text + end + ")" * 11


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (nested("b", "a10 == b10"), "steps"),
        (nested("b", "a10 in [1, b10]"), "steps"),
        (nested("b", "[a10] != [b10]"), "steps"),
        ("'x'[a10] == 1", "a list"),
        ("device[a10] == 1", "a list"),
        ("quantity(a10) == quantity('1')", "a list"),
        ("semver(a10) == semver('1.0.0')", "a list"),
        ("a10 < a10", "a list"),
    ],
)
def test_lists_that_share_their_parts_are_never_written_out(end: str, said: str) -> None:
    """The comparison of two of them did not end, and neither did their text in a message."""
    budget = Budget(1_000_000)
    with pytest.raises(CelError, match=said):
        matches(nested("a", end), DEVICE, budget)
    assert budget.spent <= 2 * MAX_STEPS


def test_values_of_different_kinds_differ_within_lists_too() -> None:
    assert matches("!([1] == [true]) && [1, ['x']] == [1, ['x']] && !([1] == [1, 2])", DEVICE)
    assert matches(f"{A} == {A} && [{A}] == [{A}] && !({A} == {C})", DEVICE)


def test_many_selectors_have_one_budget_together() -> None:
    budget = Budget(1_000)
    while budget.spent < 990:
        assert matches("1 == 1", DEVICE, budget)
    with pytest.raises(CelError, match="more than 1000 steps"):
        matches("2 == 2 && 3 == 3 && 4 == 4", DEVICE, budget)


def test_parsed_expressions_are_kept_by_their_characters() -> None:
    cache = ParsedExpressions()
    for n in range(60):
        cache(f"'{n:08}{'x' * 9_000}' == 'y'")
    assert 0 < cache.characters <= MAX_CACHED
    assert cache.characters < 60 * 9_000
    for n in range(10_000):
        cache(f"({n}")
    assert cache.characters <= MAX_CACHED


# What a user may write, of any two things beside each other.
WORDS = st.sampled_from(
    [
        *("device", "device.driver", "device.attributes", "device.capacity", "nobody", "true"),
        *(
            A,
            C,
            f"{A}.index",
            f"{A}.profiles",
            f"{A}.driverVersion",
            f"{A}.?numa",
            f"{A}[?'index']",
        ),
        *("0", "-1", "1.5", "9" * 19, "9" * 20, "9" * 5000, "'x'", "'1.2.3'", "[]"),
        *('quantity("80Gi")', 'semver("1.2.3")', f'semver("1.0.0-{"9" * 5000}")', "quantity('x')"),
    ]
)


def made_of(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(parts, parts)
    signs = st.sampled_from(["+", "-", "==", "<", ">=", "in", "&&", "||"])
    methods = st.sampled_from(
        ["size", "startsWith", "compareTo", "isLessThan", "major", "orValue", "hasValue", "exists"]
    )
    return st.one_of(
        st.tuples(signs, two).map(lambda f: f"({f[1][0]} {f[0]} {f[1][1]})"),
        two.map(lambda f: f"{f[0]}[{f[1]}]"),
        two.map(lambda f: f"[{f[0]}, {f[1]}]"),
        st.tuples(st.sampled_from(["!", "-"]), parts).map(lambda f: f"{f[0]}({f[1]})"),
        st.tuples(st.sampled_from(["quantity", "semver", "size", "has"]), parts).map(
            lambda f: f"{f[0]}({f[1]})"
        ),
        st.tuples(parts, methods).map(lambda f: f"{f[0]}.{f[1]}()"),
        st.tuples(parts, methods, parts).map(lambda f: f"{f[0]}.{f[1]}({f[2]})"),
        st.tuples(parts, parts).map(lambda f: f"{f[0]}.exists(p, p == {f[1]})"),
        st.tuples(parts, parts).map(lambda f: f"cel.bind(v, {f[0]}, v == {f[1]})"),
        st.tuples(parts, parts, parts).map(lambda f: f"{f[0]} ? {f[1]} : {f[2]}"),
    )


@settings(max_examples=1500, deadline=None)
@given(st.recursive(WORDS, made_of, max_leaves=6))
def test_whatever_is_written_has_an_answer_or_a_reason(text: str) -> None:
    reason = ""
    found = None
    try:
        found = matches(text, DEVICE)
    except CelError as error:
        reason = str(error)
    assert isinstance(found, bool) or reason
