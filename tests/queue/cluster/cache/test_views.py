"""Several views of the pods of one watch: each gets what a watch of its own would report."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.cache.views import View, Views
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.reflector import Change, Changed, Removed, Synced


class Heard:
    """Keeps what it is sent, as a user of a watch does."""

    def __init__(self) -> None:
        self.has: dict[str, Any] = {}
        self.syncs = 0

    def told(self, change: Change[Any]) -> None:
        match change:
            case Changed(item):
                self.has[item.key] = item.value
            case Removed(key):
                del self.has[key]  # what was never reported is not taken back
            case Synced():
                self.syncs += 1


def pod(label: str, size: int) -> dict[str, Any]:
    return {"label": label, "size": size}


def changed(views: Views, key: str, document: dict[str, Any]) -> None:
    views.notify(Changed(Item(key, "1", views.read(document))))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", ""]), st.integers(0, 3)),
        max_size=30,
    )
)
def test_each_has_of_all_that_there_are_those_it_wants(
    events: list[tuple[str, str, int]],
) -> None:
    every, some = Heard(), Heard()
    views = Views(
        View(lambda one: one["size"], every.told),
        View(dict, some.told, lambda one: one["label"] == "x"),
    )
    there: dict[str, dict[str, Any]] = {}
    for key, label, size in events:
        if label:
            there[key] = pod(label, size)
            changed(views, key, there[key])
        elif there.pop(key, None) is not None:
            views.notify(Removed(key))
    assert every.has == {key: one["size"] for key, one in there.items()}
    assert some.has == {key: one for key, one in there.items() if one["label"] == "x"}
    views.notify(Synced())
    assert (every.syncs, some.syncs) == (1, 1)


def test_one_that_comes_later_hears_what_is_told_anew() -> None:
    first, late = Heard(), Heard()
    views = Views(View(dict, first.told))
    old = views.read(pod("x", 1))
    views.add(View(dict, late.told))
    views.notify(Changed(Item("a", "1", old)))  # it was read before
    assert (len(first.has), len(late.has)) == (1, 0)
    changed(views, "a", pod("x", 1))
    assert late.has == first.has
