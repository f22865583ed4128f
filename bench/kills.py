"""Figure 11: readers, workers, the daemon and its helpers are killed in random order, and what that does to who reads on.

    python bench/kills.py [--kills 10000] [--seed 1] [--seconds 0] [--audits 1000]

Four readers that nobody kills compare every byte of what they read; so do those that are killed, for as long as they live.
Of 100 kills 60 are of readers, 33 of workers or their trainers, 6 of the daemon (any moment, while it starts, fetches, unpacks
or evicts) and 1 of a process that reads archives for it. The order follows from the seed, the moments from the machine too.
Every so many kills all readers are stopped or gone, and leases, bytes and plans are counted. A read while the daemon
restarts waits, and has failed when it ends in an error. Ends with 1 when something but zeros came out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from kills_audit import COUNTS, PATIENCE, Audit, Tally
from kills_readers import PROGRAM, Data
from side_by_side import Daemon, folder, main, table, until

from tests.fakes import disk
from tests.fakes.origin import OriginProcess
from tests.fakes.readers import Reader
from tests.fakes.waiting import family

READING = 4
"""Readers that nobody kills."""
CAP = 30
"""Shards: more than readers hold while they want more, so that none waits for ever; fewer than half of what there is."""
MOMENTS = ("any", "start", "fetch", "unpack", "evict")
"""Of the daemon's."""
MIX = {"reader": 60, "worker": 33, "helper": 1, **dict.fromkeys(MOMENTS, 1)}
"""Of 100 kills; `start` is two of them, since it is a daemon's that starts after another kill."""


def schedule(kills: int, chance: random.Random) -> list[str]:
    """The kinds of all kills, in random order."""
    drawn: list[str] = []
    while len(drawn) < kills:
        kind = chance.choices(list(MIX), list(MIX.values()))[0]
        drawn += ["any", "start"] if kind == "start" else [kind]
    return drawn[:kills]


# --- killing the daemon


class Deaths:
    """Kills one daemon after the other at moments of a kind."""

    def __init__(self, daemon: Daemon, data: Data, tally: Tally, chance: random.Random) -> None:
        """The daemon runs."""
        self.daemon, self.data, self.tally, self.chance = daemon, data, tally, chance
        self._may_help = True

    def up(self) -> None:
        """It answers, or has been waited for."""
        process = self.daemon.process
        until(lambda: self.daemon.answers() or (process and process.poll() is not None), PATIENCE, "the daemon's start")
        if not self.daemon.alive:
            raise AssertionError(f"the daemon ended by itself:\n{self.daemon.log[-3000:]}")

    def kill(self, moment: str) -> None:
        """SIGKILL at a moment of that kind; started again at once, and not waited for."""
        if moment == "start":
            self._pause(0.6)
            self.tally.met["start"] += not self._listens()
        else:
            self.up()
            {
                "any": lambda: self._pause(0.3),
                "fetch": self._fetching,
                "unpack": self._unpacking,
                "evict": self._evicting,
            }[moment]()
        before = self.daemon.pid
        self.daemon.kill9()
        until(lambda: not family(before), PATIENCE, "the end of the helpers")
        self.daemon.forget_the_dead()
        self._look()
        self._may_help = True
        self.daemon.launch()

    def _pause(self, most: float) -> None:
        time.sleep(self.chance.uniform(0.0, most))

    def _soon(self, state: Callable[[], object]) -> None:
        with contextlib.suppress(AssertionError):  # readers may want nothing just then: any moment will do
            until(state, 3)

    def _fetching(self) -> None:
        self._soon(lambda: self._staged("data"))
        self._pause(0.05)

    def _unpacking(self) -> None:
        self._soon(lambda: self._staged("tree"))
        self._pause(0.005)

    def _evicting(self) -> None:
        """While an eviction that was asked for is under way."""
        self.evict([f"{one['source']}/{one['key']}" for one in self.daemon.shards()])
        self._pause(0.006)

    def evict(self, names: list[str]) -> None:
        """Ask for the eviction of one of these, leased or not, and go without the answer; nobody may be there to hear."""
        source, _, key = self.chance.choice(names or ["plain/none"]).partition("/")
        with contextlib.suppress(OSError), contextlib.closing(self.daemon.connection(1.0)) as link:
            link.request("DELETE", f"/v1/shards?source={source}&key={key}")

    def _staged(self, name: str) -> list[Path]:
        return list((self.daemon.cache / "staging").glob(f"*/{name}"))

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.daemon.socket)) == 0

    def _look(self) -> None:
        """What it was in the middle of."""
        self.tally.met["fetch"] += bool(self._staged("data"))
        self.tally.met["unpack"] += bool(self._staged("tree"))
        self.tally.met["evict"] += bool(os.listdir(self.daemon.cache / "trash"))

    def helper(self) -> bool:
        """Kill a process of the daemon's; one in a daemon's life: an archive that costs two of them is refused for it."""
        self.up()
        helpers = family(self.daemon.pid)
        if not helpers or not self._may_help:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(helpers), signal.SIGKILL)
        self._may_help = False
        return True


# --- the whole


class Run:
    """One run: a daemon, its readers, and those who die."""

    def __init__(self, stack: contextlib.ExitStack, seed: int) -> None:
        """All of them begin to read."""
        self.data, self.tally, self.chance = Data(), Tally(), random.Random(seed)
        notes = stack.enter_context(folder("/tmp"))
        self.daemon = stack.enter_context(_daemon(stack, self.data))
        self.deaths = Deaths(self.daemon, self.data, self.tally, self.chance)
        self.audits = Audit(self.daemon, self.data, notes, self.tally)
        arg = {"folder": str(notes), "data": asdict(self.data)}
        self.readers = [
            stack.enter_context(
                Reader(self.daemon, PROGRAM + "kills_readers.go_on(ARG, say, hear)", arg | {"seed": number})
            )
            for number in range(READING)
        ]
        program = PROGRAM + "kills_readers.nurse(ARG, say, hear)"
        self.nursery = stack.enter_context(Reader(self.daemon, program, arg | {"seed": seed}))
        for one in (*self.readers, self.nursery):
            one.line(PATIENCE)
        self._tell("fill")

    def kill(self, kind: str) -> None:
        """One kill."""
        if kind in MOMENTS:
            self.deaths.kill(kind)
        elif kind != "helper" or not self.deaths.helper():
            kind = "worker" if kind == "worker" else "reader"  # without a helper somebody dies all the same
            self._tell(kind)
            self.deaths.evict(disk.published(self.daemon.cache))
            time.sleep(self.chance.uniform(0.0, 0.02))
        self.tally.kills["daemon" if kind in MOMENTS else kind] += 1

    def _tell(self, word: str) -> None:
        self.nursery.tell(word)
        self.nursery.line(5 * PATIENCE)

    def audit(self, then: str) -> None:
        """Everybody stops, all is counted, and what is told goes on from there."""
        self._tell("clear")
        for one in self.readers:
            one.tell()
        self.tally.reads = sum(one.line(5 * PATIENCE) for one in self.readers)
        self.deaths.up()
        self.audits.all()
        for one in self.readers:
            one.tell(then)
        if then == "on":
            self._tell("fill")


@contextlib.contextmanager
def _daemon(stack: contextlib.ExitStack, data: Data) -> Iterator[Daemon]:
    """Over two origins that take a while for each shard."""
    slow = {"objects": data.shards, "bps": 4 << 20, "latency": 0.005}
    plain = stack.enter_context(OriginProcess(size=data.size, **slow))
    zips = stack.enter_context(OriginProcess(size=data.member_size, members=data.members, **slow))
    sources = {
        "plain": {"url": plain.url},
        "indexed": {"url": zips.url},
        "unpacked": {"url": zips.url, "archives": "unpack"},
    }
    with Daemon(sources, max_shards=CAP, grace="300ms", check=False) as daemon:
        yield daemon


def run() -> None:
    """Kill as often as is asked for, or for so long."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1, help="of the order of the kills, and of what is read")
    options.add_argument("--seconds", type=float, default=0.0, help="end after so many, whatever is left; 0: never")
    options.add_argument("--audits", type=int, default=1_000, help="kills between two audits")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nobody is left behind
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        one = Run(stack, chosen.seed)
        for number, kind in enumerate(schedule(chosen.kills, one.chance), 1):
            one.kill(kind)
            is_late = 0 < chosen.seconds < time.monotonic() - began
            if number % chosen.audits == 0:
                one.audit("on")
            if number % 100 == 0:
                print(
                    f"{number:,} kills, {time.monotonic() - began:.0f} s, {dict(one.tally.found) or 'clean'}",
                    flush=True,
                )
            if is_late:
                break
        one.audit("end")
        one.audits.last()
    report(one.tally, chosen.seed, time.monotonic() - began)


def report(tally: Tally, seed: int, seconds: float) -> None:
    """Print what came out; end with 1 when there is anything but zeros."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tally.kills.items()))
    moments = ", ".join(f"{moment} {count:,}" for moment, count in sorted(tally.met.items()))
    print(f"seed {seed}, {seconds:.0f} s; killed: {kinds}; daemons in the middle of: {moments}")
    print(f"{tally.by_all:,} reads of all bytes of a shard, {tally.reads:,} of them by readers that nobody killed")
    table(["kills", *COUNTS], [[f"{tally.kills.total():,}", *(f"{tally.found[what]:,}" for what in COUNTS)]])
    print(
        f"  figure 11: {'reached' if tally.is_clean and tally.kills.total() >= 10_000 else 'clean' if tally.is_clean else 'MISSED'}"
    )
    for detail in tally.details[:50]:
        print(detail[:3000])
    if not tally.is_clean:
        sys.exit(1)


if __name__ == "__main__":
    main(run)
