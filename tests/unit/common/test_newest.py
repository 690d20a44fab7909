from __future__ import annotations

from sluicecommon.newest import Newest, Seen


def test_the_oldest_entries_are_forgotten_whatever_is_set_again() -> None:
    kept = Newest[str, int](2, [("a", 1), ("b", 2)])
    kept["a"] = 3
    kept["c"] = 4
    assert list(kept.items()) == [("b", 2), ("c", 4)]


def test_entries_to_begin_with_are_bounded_too() -> None:
    assert list(Newest(2, ((number, None) for number in range(5)))) == [3, 4]


def test_a_key_is_first_once_and_again_after_it_was_forgotten() -> None:
    seen = Seen[str](1)
    assert [seen.is_first(key) for key in ("a", "a", "b", "a")] == [True, False, True, True]
