"""Which promise was given on which connection, so that a touch on the same connection ends it."""

from __future__ import annotations

import time
from collections import OrderedDict

from aiohttp import web

from cachedaemon.grace import Grace, Promise
from cachedaemon.model import Ref

KEPT = 60.0
"""Seconds that a promise is known after its answer: a touch that ends it late still counts as no use of its own."""


class Promises:
    """Promises by connection and shard. A connection is known by its protocol, which is kept so that none takes its id."""

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._given: OrderedDict[tuple[object, Ref], tuple[float, list[Promise]]] = OrderedDict()

    def keep(self, request: web.Request, ref: Ref, promise: Promise) -> None:
        """An answer went out."""
        self._forget()
        self._grace.start(promise)
        place = (request.protocol, ref)
        _, promises = self._given.pop(place, (0.0, []))
        self._given[place] = (time.monotonic(), [*promises, promise])

    def end(self, request: web.Request, ref: Ref) -> bool:
        """The reader has its lease; False when nothing was promised to it."""
        place = (request.protocol, ref)
        _, promises = self._given.get(place, (0.0, []))
        if not promises:
            return False
        self._grace.end(promises.pop())
        if not promises:
            del self._given[place]
        return True

    def _forget(self) -> None:
        limit = time.monotonic() - KEPT
        while self._given and next(iter(self._given.values()))[0] < limit:
            self._given.popitem(last=False)
