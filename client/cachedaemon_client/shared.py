"""What a data set shares with the workers that are made of it: numbers in memory that they inherit, or are sent by spawn."""

from __future__ import annotations

import os
from collections.abc import Iterable
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any


class Shared:
    """Whole numbers that this process and its workers see alike. A copy, or one that is pickled for anybody else, has its own."""

    def __init__(self, values: Iterable[int]) -> None:
        self._values = RawArray("q", list(values))

    def __getstate__(self) -> Any:
        """Its memory for a worker that is being spawned, else its values."""
        return self.part(0, len(self)) if get_spawning_popen() is None else self._values

    def __setstate__(self, state: Any) -> None:
        self._values = RawArray("q", state) if isinstance(state, list) else state

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def __getitem__(self, place: int) -> int:
        """One of them."""
        value: int = self._values[place]
        return value

    def __setitem__(self, place: int, value: int) -> None:
        self._values[place] = value

    def part(self, start: int, stop: int) -> list[int]:
        """Those of a part."""
        values: list[int] = self._values[start:stop]
        return values

    def write(self, start: int, values: list[int]) -> None:
        """Have other numbers from a place on."""
        self._values[start : start + len(values)] = values


class Turn:
    """The order of shards in the iteration under way, shared with the workers that are given its indexes.

    Only the process that made it begins iterations. A copy is a new one, as is one that is pickled for no worker.
    """

    _HEAD = 3
    """Places of the iteration's number, and of how many keys are its own and altogether."""

    def __init__(self, room: int, maker: int | None = None, numbers: Shared | None = None) -> None:
        self._maker = maker or os.getpid()
        self._numbers = numbers or Shared([0] * (self._HEAD + 2 * room))

    def __reduce__(self) -> tuple[Any, ...]:
        """With what it shares for a worker that is being spawned, else by its room."""
        return Turn, (self.room,) if get_spawning_popen() is None else (self.room, self._maker, self._numbers)

    @property
    def room(self) -> int:
        """For how many keys of an iteration, with as many of the next, there is room."""
        return (len(self._numbers) - self._HEAD) // 2

    @property
    def is_ours(self) -> bool:
        """Whether this process made it, and not the one that this one was forked or spawned from."""
        return self._maker == os.getpid()

    @property
    def number(self) -> int:
        """Which iteration it is; 0: none was begun."""
        return self._numbers[0]

    def begin(self, now: list[int], then: list[int]) -> int:
        """Another iteration: the numbers of its shards, and of the next one's. No worker has an index of it yet. Its number.

        What there is no room for, the last of the next one's, is left out.
        """
        order = (now + then)[: 2 * self.room]
        self._numbers.write(self._HEAD, order)
        self._numbers.write(1, [min(len(now), len(order)), len(order)])
        self._numbers[0] += 1
        return self.number

    def order(self) -> tuple[list[int], int]:
        """The numbers, and how many of them are this iteration's."""
        now, together = self._numbers.part(1, self._HEAD)
        return self._numbers.part(self._HEAD, self._HEAD + together), now
