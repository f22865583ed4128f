"""The next use of each key, against a search through the list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.course import Course


def next_use(keys: list[str], key: str, position: int) -> int | None:
    return next((index for index in range(position, len(keys)) if keys[index] == key), None)


@given(st.lists(st.sampled_from("abcde"), max_size=30), st.lists(st.integers(-3, 33), max_size=8), st.integers(0, 30))
def test_wherever_the_consumer_goes(keys: list[str], places: list[int], start: int) -> None:
    course = Course(keys, start)
    for place in [start, *places]:
        before = {key: course.next_use(key) for key in "abcde"}
        moved = course.move(place)
        assert course.position == min(max(0, place), len(keys))
        after = {key: course.next_use(key) for key in "abcde"}
        assert after == {key: next_use(keys, key, course.position) for key in "abcde"}
        assert {key for key in "abcde" if before[key] != after[key]} <= set(moved)
        assert list(course.ahead()) == list(enumerate(keys))[course.position :]
    for index, key in enumerate(keys):
        assert course.again(index) == next_use(keys, key, index + 1)


def test_the_same_order_is_known_as_such() -> None:
    assert Course(["a", "b"], 1).order == Course(["a", "b"]).order
    assert Course(["a", "b"]).order != Course(["b", "a"]).order
