"""Which files of a watched folder are told, and when: looks played in simulated time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.mounts.looks import Identity, Looks, is_unfinished
from cachedaemon.mounts.tree import Tree
from cachedaemon.mounts.watched import Watched
from tests.fakes.waiting import until

# watchdog tells of a folder that it meets twice: as it comes, and as it looks through the one above.
pytestmark = pytest.mark.filterwarnings("ignore:Callback with id:RuntimeWarning")

WALL = 1_000_000.0


def state(size: int, *, inode: int = 1, mtime: float = WALL) -> Identity:
    return Identity(7, inode, int(mtime * 1e9), size)


def told(looks: Looks, seen: dict[str, Identity], now: float) -> list[str]:
    return [key for key, _ in looks.take(seen, now, WALL + now).complete]


@pytest.fixture
def looks() -> Looks:
    """After a first look, two seconds to settle."""
    made = Looks(2.0)
    assert told(made, {"old": state(1, mtime=WALL - 100), "new": state(1)}, 0.0) == ["old"]
    assert told(made, {"old": state(1, mtime=WALL - 100), "new": state(1)}, 2.0) == ["new"]
    return made


def test_a_file_is_told_once_it_has_been_left_alone(looks: Looks) -> None:
    assert told(looks, {"a": state(1)}, 10.0) == []
    assert looks.due(10.5) == 1.5
    assert told(looks, {"a": state(2)}, 11.9) == []
    assert told(looks, {"a": state(2)}, 13.8) == []
    assert told(looks, {"a": state(2)}, 13.9) == ["a"]
    assert told(looks, {"a": state(2)}, 99.0) == []
    assert looks.due(99.0) == float("inf")


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_the_clock_of_a_server_makes_no_file_complete(looks: Looks, skew: float) -> None:
    assert told(looks, {"a": state(1, mtime=WALL + skew)}, 10.0) == []
    assert told(looks, {"a": state(1, mtime=WALL + skew)}, 12.0) == ["a"]


def test_a_file_that_changes_later_is_told_again(looks: Looks) -> None:
    for number, now in ((1, 10.0), (2, 20.0)):
        assert told(looks, {"a": state(5, inode=number)}, now) == []
        assert told(looks, {"a": state(5, inode=number)}, now + 2) == ["a"]


def test_order_of_arrival(looks: Looks) -> None:
    first = {"z": state(1)}
    both = {"z": state(1), "b": state(1, mtime=WALL + 2), "c": state(1, mtime=WALL + 1)}
    told(looks, first, 10.0)
    told(looks, both, 10.5)
    assert told(looks, both, 20.0) == ["z", "c", "b"]


def test_an_empty_folder_says_nothing_and_what_comes_back_is_not_told_again(looks: Looks) -> None:
    """C-19: an unmounted file system leaves an empty folder."""
    there = {"old": state(1, mtime=WALL - 100), "new": state(1)}
    assert looks.take({}, 10.0, WALL) == ([], [])
    assert looks.take(there, 20.0, WALL) == ([], [])
    assert looks.take({"old": there["old"]}, 20.0, WALL) == ([], ["new"])


def test_names_of_what_is_not_finished() -> None:
    for key in ("a.zip.part", "A.PART", ".a.zip.x7Tq", ".done/a.zip", "sub/.hidden", "a.crdownload", "a.aria2"):
        assert is_unfinished(key)
    assert not any(map(is_unfinished, ("a.zip", "part", "a.part/b.zip", "a.parts")))


def test_what_aria2_writes_is_complete_when_its_own_file_has_gone(looks: Looks) -> None:
    told(looks, {"a": state(9), "a.aria2": state(1)}, 10.0)
    assert told(looks, {"a": state(9), "a.aria2": state(1)}, 20.0) == []
    told(looks, {"a": state(9)}, 21.0)
    assert told(looks, {"a": state(9)}, 23.0) == ["a"]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1), min_size=1, max_size=12))
def test_whatever_happens_each_state_is_told_once_and_only_when_it_lasted(history: list[dict[str, int]]) -> None:
    """Two looks a second apart see the same, and what they see is told by the second one unless it was told last."""
    looks, before, last = Looks(1.0), dict[str, Identity](), dict[str, Identity]()
    for now, sizes in enumerate(history):
        seen = {key: state(size) for key, size in sizes.items()}
        look = looks.take(seen, float(now), WALL)
        last = {key: one for key, one in last.items() if key in seen}
        expected = {k for k, one in seen.items() if before.get(k) == one and last.get(k) != one}
        assert {key for key, _ in look.complete} == expected
        last |= dict(look.complete)
        before = seen


# ---- the same on a real folder, with inotify


class Heard:
    """What a watched folder says, from a thread of its own that ends with the test."""

    def __init__(self, folder: Path, settle: float = 0.0) -> None:
        self.said: list[dict[str, Any]] = []
        self._ended = False
        self._watched = Watched(Tree(f"{folder}/"), settle, self._say)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _say(self, what: dict[str, Any]) -> None:
        if self._ended:
            raise BrokenPipeError
        if what:
            self.said.append(what)

    def _run(self) -> None:
        try:
            self._watched.run()
        except BrokenPipeError:
            return

    def __enter__(self) -> Self:
        until(lambda: self.said, 10, "the first look")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def keys(self) -> list[str]:
        return [row[0] for said in list(self.said) for row in said.get("complete", ())]

    def has(self, *keys: str) -> None:
        until(lambda: set(keys) <= set(self.keys()), 10, f"{keys} in {self.said}")


def test_every_way_that_a_file_can_come(folder: Path) -> None:
    drop, aside = folder / "drop", folder / "aside"
    drop.mkdir()
    aside.mkdir()
    for name in ("outside", "linked", "tree/in-tree"):
        (aside / name).parent.mkdir(exist_ok=True)
        (aside / name).write_bytes(b"x")
    (drop / "before").write_bytes(b"x")
    with Heard(drop) as heard:
        (drop / "direct").write_bytes(b"x")
        (drop / "renamed.part").write_bytes(b"x")
        (drop / "renamed.part").rename(drop / "renamed")
        (aside / "outside").rename(drop / "outside")
        os.link(aside / "linked", drop / "linked")
        (aside / "tree").rename(drop / "tree")
        (drop / "made" / "deep").mkdir(parents=True)
        (drop / "made" / "deep" / "file").write_bytes(b"x")
        heard.has("before", "direct", "renamed", "outside", "linked", "tree/in-tree", "made/deep/file")
        assert len(heard.keys()) == 7


def test_events_shorten_the_wait(folder: Path) -> None:
    """Looks without a stir are two seconds apart; ten files, one after the other, are there in less than half of that each."""
    with Heard(folder) as heard:
        began = time.monotonic()
        for number in range(10):
            (folder / f"{number}").write_bytes(b"x")
            heard.has(f"{number}")
        if any("polls" in said for said in heard.said):
            pytest.skip("not here by design: another test has used up inotify just now")
        assert time.monotonic() - began < 10


def test_a_folder_that_goes_and_comes_back(folder: Path) -> None:
    """C-19: no file has gone, none is told twice, and what is new is told; with events, since it is subscribed to anew."""
    drop, aside = folder / "drop", folder / "aside"
    drop.mkdir()
    (drop / "a").write_bytes(b"x")
    with Heard(drop) as heard:
        heard.has("a")
        drop.rename(aside)
        until(lambda: "away" in heard.said[-1], 10, "word of it")
        aside.rename(drop)
        until(lambda: "looked" in heard.said[-1], 10, "a look")
        (drop / "b").write_bytes(b"x")
        heard.has("b")
        assert heard.keys() == ["a", "b"]
        assert not any("gone" in said for said in heard.said)


def test_a_folder_that_is_not_there_yet(folder: Path) -> None:
    with Heard(folder / "drop") as heard:
        assert "No such file" in heard.said[0]["away"]
        (folder / "drop").mkdir()
        until(lambda: "looked" in heard.said[-1], 10, "a look")
        (folder / "drop" / "a").write_bytes(b"x")
        heard.has("a")
