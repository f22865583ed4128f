"""Where an origin's objects lie in a test, and how that place misbehaves on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Literal, Protocol

import pytest

STALL = 1.0
"""Seconds; the stall limit of the origins under test."""
BY_DESIGN = "not here by design"
"""How the reason begins of a test that a place cannot take."""

Then = Callable[[], None]
"""What the test does once the object is open, for places that misbehave only then."""
Trait = Literal["parts", "versions", "listing", "refusal", "outage", "slowness", "silence", "cut", "change"]
"""What a place may lack."""


def nothing() -> None:
    """For places that need no further word once the object is open."""


class Place(Protocol):
    """A real place with objects in it: a server, a folder, a store. Derive from it to get the defaults."""

    url: str
    """Of the source, without a key."""
    settings: Mapping[str, object] = MappingProxyType({})
    """Further settings of the source, as in the configuration."""
    lacks: Mapping[Trait, str] = MappingProxyType({})
    """What it cannot have or do, each with the reason.

    Without "parts" a stream must say so, and refuse them; without "versions" it must have no validators; without
    "listing" the origin must refuse to list. For the others the tests are skipped.
    """
    impossible: Collection[str] = ()
    """Keys of `suite.ODD` that cannot exist here."""

    def put(self, key: str, data: bytes) -> None:
        """Offer an object; at a key that is taken, another version of it."""

    def refuse(self, key: str) -> None:
        """Have something at the key that will not be given out."""

    def down(self) -> None:
        """Nothing can be reached."""

    def up(self) -> None:
        """All is well again; called at the end of each test too."""

    def trickle(self, key: str) -> None:
        """Objects come slowly and steadily, and take over `STALL` in all."""

    def hang(self, key: str) -> None:
        """Accept and say nothing, until `up`."""

    def cut(self, key: str, offset: int) -> Then:
        """End the next transfer after so many bytes."""

    def change(self, key: str, data: bytes) -> Then:
        """Put other bytes of the same length at the key while the next transfer is under way."""


def needs(place: Place, trait: Trait) -> None:
    """Skip the test where the place lacks this, in its own words."""
    if trait in place.lacks:
        pytest.skip(f"{BY_DESIGN}: {place.lacks[trait]}")
