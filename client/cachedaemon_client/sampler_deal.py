"""How one epoch's shards are dealt out to those who read them, anew after a change of the world in mid-epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, cycle, islice

from cachedaemon_client.sampler_keys import Shards
from cachedaemon_client.sampler_strata import interleaved
from cachedaemon_client.sampler_streams import stream

PARTITIONS = ("uneven", "drop", "pad")

Done = Sequence[Sequence[int]]
"""What was read of a part: for each run of the job, how many shards each of its workers had done, one after the other.

Worker w of n takes every n-th of what was left at the run's beginning, from place w on.
"""


@dataclass(frozen=True)
class Layout:
    """Who gets a part: `readers` on each of `nodes`; part r of node n is number n * `readers` + r."""

    nodes: int
    readers: int
    at_home: bool
    """Whether each node has its own keys in every epoch."""

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return self.nodes * self.readers


def left_of(places: Sequence[int], done: Done) -> Sequence[int]:
    """Which places of a part are still to be read, in order."""
    for run in done:
        workers = len(run)
        places = [place for turn, place in enumerate(places) if turn // workers >= run[turn % workers]]
    return places


@dataclass(frozen=True)
class Deal:
    """All parts of one deal, as item numbers, class by class where there are classes."""

    parts: list[list[int]]
    dropped: list[int]
    """Items that nobody gets, so that all parts are alike."""
    repeated: list[int]
    """Items that come once more than they should, so that all parts are alike."""


class Epoch:
    """One epoch's items in order, and which of them are still to be dealt. Items are numbered by their place in the order."""

    def __init__(self, shards: Shards, number: int, partition: str) -> None:
        self._shards = shards
        self._number = number
        self._partition = partition
        self.order = shards.order(number)
        self._rest = list(range(len(self.order)))

    def deal(self, layout: Layout) -> Deal:
        """Deal out what is left."""
        groups = self._by_node(self._rest, layout.nodes if layout.at_home else 1)
        readers = layout.parts // len(groups)
        size = self._size(groups, readers)
        deal = Deal([], [], [])
        for node, items in enumerate(groups):
            even = items if size is None else self._levelled(items, size * readers, (node, len(groups)), deal)
            laid = self._by_class(even)
            deal.parts.extend(laid[reader::readers] for reader in range(readers))
        return deal

    def strike(self, layout: Layout, done: Sequence[Done]) -> None:
        """Take out what was read of each part of a deal."""
        deal = self.deal(layout)
        read: set[int] = set()
        for number, one in enumerate(done):
            part = self.arranged(deal, number)
            left = set(left_of(range(len(part)), one))  # by place: what is read and comes once more has been read
            read.update(item for place, item in enumerate(part) if place not in left)
        self._rest = [item for item in self._rest if item not in read]

    def arranged(self, deal: Deal, number: int) -> list[int]:
        """A part in the order in which it is read: with classes, interleaved.

        All parts have about the same sequence of classes, so each begins it one place further: in any one step, readers
        that go in step see another run of it, not all the same class. Where the first begins is the epoch's chance.
        """
        part = deal.parts[number]
        if self._shards.classes is None or not part:
            return part
        by_class: dict[int, list[int]] = defaultdict(list)
        for item in part:
            by_class[self._class_of(item)].append(item)
        piles = [iter(pile) for pile in by_class.values()]
        pattern = interleaved([len(pile) for pile in by_class.values()])
        start = (self._phase + number) % len(pattern)
        return [next(piles[one]) for one in chain(pattern[start:], pattern[:start])]

    def keys_of(self, items: Iterable[int]) -> list[str]:
        """The items' keys."""
        return [self._shards.keys[self.order[item]] for item in items]

    # ---- parts of one size

    def _size(self, groups: list[list[int]], readers: int) -> int | None:
        """Items of every part; None where they may differ."""
        if self._partition == "drop":
            return min(len(items) // readers for items in groups)
        if self._partition == "pad":
            return max(-(-len(items) // readers) for items in groups)
        return None

    def _levelled(self, items: list[int], want: int, home: tuple[int, int], deal: Deal) -> list[int]:
        """The items with so many dropped or repeated that `want` are there. `home`: whose they are, node and nodes."""
        surplus = len(items) - want
        if surplus > 0:
            dropped = self._in_turn(items, surplus, home)
            deal.dropped.extend(dropped)
            gone = set(dropped)
            return [item for item in items if item not in gone]
        if surplus < 0:
            repeated = self._in_turn(self._all_of(home), -surplus, home)
            deal.repeated.extend(repeated)
            return items + repeated
        return items

    def _in_turn(self, items: Sequence[int], count: int, home: tuple[int, int]) -> list[int]:
        """The `count` items whose turn it is: each epoch goes on in the node's ring where the one before ended."""
        node, nodes = home
        homes = self._shards.homes(nodes)
        places, order, ring, start = homes.places, self.order, max(homes.sizes[node], 1), self._number * count
        turned = nsmallest(count, items, key=lambda item: (places[order[item]] - start) % ring)
        return list(islice(cycle(turned), count))

    def _all_of(self, home: tuple[int, int]) -> Sequence[int]:
        """A node's items, whether they were read or not; where it has none, those of all."""
        node, nodes = home
        everything = range(len(self.order))
        return self._by_node(everything, nodes)[node] or everything

    # ---- homes and classes

    def _by_node(self, items: Sequence[int], nodes: int) -> list[list[int]]:
        if nodes == 1:
            return [list(items)]
        homes = self._shards.homes(nodes).nodes
        groups: list[list[int]] = [[] for _ in range(nodes)]
        for item in items:
            groups[homes[self.order[item]]].append(item)
        return groups

    def _by_class(self, items: list[int]) -> list[int]:
        """Class by class, so that dealing them one by one gives each part its share of each."""
        return items if self._shards.classes is None else sorted(items, key=self._class_of)

    def _class_of(self, item: int) -> int:
        assert self._shards.classes is not None
        return self._shards.classes[self.order[item]]

    @property
    def _phase(self) -> int:
        return stream(self._shards.seed, self._number, "strata").word() if self._shards.shuffle else 0
