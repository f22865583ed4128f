"""Which promise was given on which connection, so that a touch on the same connection ends it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from weakref import WeakKeyDictionary

from aiohttp import web

from cachedaemon.grace import Grace, Promise
from cachedaemon.model import Ref

KEPT = 60.0
"""Seconds that a promise is known after its answer: a touch that ends it late still counts as no use of its own."""

_Given = OrderedDict[Ref, tuple[float, list[Promise]]]


class Promises:
    """Promises by connection and shard.

    A connection is known by its transport, and what was given on it is forgotten with it: no other is taken for it, and
    clients that come and go leave nothing behind.
    """

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._given: WeakKeyDictionary[asyncio.Transport, _Given] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Connections on which something was given."""
        return len(self._given)

    def keep(self, request: web.Request, ref: Ref, promise: Promise) -> None:
        """An answer went out."""
        self._grace.start(promise)
        if request.transport is None:
            return
        given = self._given.setdefault(request.transport, OrderedDict())
        _forget(given)
        _, promises = given.pop(ref, (0.0, []))
        given[ref] = (time.monotonic(), [*promises, promise])

    def end(self, request: web.Request, ref: Ref) -> bool:
        """The reader has its lease; False when nothing was promised to it."""
        given = self._given.get(request.transport) if request.transport is not None else None
        if given is None or ref not in given:
            return False
        _, promises = given[ref]
        self._grace.end(promises.pop())
        if not promises:
            del given[ref]
        return True


def _forget(given: _Given) -> None:
    limit = time.monotonic() - KEPT
    while given and next(iter(given.values()))[0] < limit:
        given.popitem(last=False)
