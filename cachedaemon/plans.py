"""Plans: the orders in which consumers will want shards. Pure: no clock, no disk, no await.

A plan lives as long as its owner holds the plan's file. Once the lock has been seen held, its loss ends the plan; a plan
whose file was never locked ends ten minutes after its last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SILENCE = 600.0
"""Seconds after its last word that a plan lives whose file was never locked."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


@dataclass(slots=True)
class Plan:
    """One consumer's order."""

    id: str
    source: str
    keys: list[str]
    position: int
    """Index of the next key to open."""
    holds: int
    """Shards that the consumer has open at once."""
    heard: float
    """Time of its last word, in seconds of the daemon's own clock."""
    seen_held: bool = False


class Plans:
    """All plans that run."""

    def __init__(self) -> None:
        self._all: dict[str, Plan] = {}

    def put(self, plan: Plan) -> bool:
        """Take a plan into force, or replace the keys of the one with its id; whether it is new."""
        old = self._all.get(plan.id)
        if old is not None:
            plan.seen_held = old.seen_held
        self._all[plan.id] = plan
        return old is None

    def get(self, name: str) -> Plan | None:
        """A plan that runs."""
        return self._all.get(name)

    def move(self, name: str, position: int | None, now: float) -> bool:
        """A plan was heard of, and perhaps moved; False when there is none."""
        plan = self._all.get(name)
        if plan is None:
            return False
        plan.heard = now
        if position is not None:
            plan.position = min(max(0, position), len(plan.keys))
        return True

    def end(self, name: str) -> bool:
        """End a plan; False when there is none."""
        return self._all.pop(name, None) is not None

    def ended(self, held: set[str], now: float) -> list[str]:
        """Given the plans whose files are held now: those to be ended."""
        gone = []
        for plan in self._all.values():
            if plan.id in held:
                plan.seen_held = True
            elif plan.seen_held or now - plan.heard > SILENCE:
                gone.append(plan.id)
        return gone

    def held_at_once(self) -> int:
        """Shards that all consumers together have open at once."""
        return sum(min(plan.holds, len(plan.keys)) for plan in self._all.values())

    def __iter__(self) -> Iterator[Plan]:
        """All, in the order of their making."""
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        """How many run."""
        return len(self._all)


def is_plan_id(name: str) -> bool:
    """Whether this may name a plan."""
    return _ID.match(name) is not None
