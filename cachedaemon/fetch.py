"""The tries of one transfer: which failures are worth another, how many, and the pauses between them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from cachedaemon.entries import Flight
from cachedaemon.errors import CacheDaemonError, Corrupt, NoSpace, OriginUnavailable
from cachedaemon.metrics import Metrics

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
LATER = 0.25
"""How much of a failure it is to be told when to come back: fewer ask at once then, and the first in line asks often."""


class Stopped(Exception):
    """The transfer gives its room to another and queues again in its old place."""


class Impatient(Exception):
    """Room is not to be had while the origin waits with an open answer: let go of it, and ask again with room."""


Stops = dict[Flight, Callable[[], None]]
"""How to stop the try of each flight."""


class Try:
    """One try, as an asynchronous block. It ends a failure that is worth another try, and can be stopped from outside."""

    def __init__(self, flight: Flight, metrics: Metrics, stops: Stops) -> None:
        self._flight = flight
        self._metrics = metrics
        self._stops = stops
        self._task: asyncio.Task[object] | None = None
        self._stopped = False
        self.cause: CacheDaemonError | Stopped | Impatient | None = None

    def stop(self) -> None:
        """End this try: its room is wanted elsewhere."""
        if self._task is not None and not self._stopped:
            self._stopped = True
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._stops[self._flight] = self.stop
        self._flight.empty()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        del self._stops[self._flight]
        if self._stopped and task is not None and task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            error = Stopped()
        self._flight.empty()
        if isinstance(error, Stopped | NoSpace):
            self._flight.give_back()
        if isinstance(error, CacheDaemonError):
            self._metrics.fetch_failures.labels(self._flight.ref.source, error.code).inc()
        if isinstance(error, Stopped | Impatient | OriginUnavailable | NoSpace | Corrupt):
            if task is not None and task.cancelling():  # it came while a thread worked, which is awaited to its end
                raise asyncio.CancelledError from error
            self.cause = error
            return True
        return False


async def tries(flight: Flight, retries: int, metrics: Metrics, *, stops: Stops) -> AsyncIterator[Try]:
    """Tries until one ends well; after `retries` more that failed, the last cause is raised.

    Between them lies a pause. Giving way to another transfer is no failure.
    """
    while True:
        one = Try(flight, metrics, stops)
        yield one
        if one.cause is None:
            return
        if isinstance(one.cause, CacheDaemonError):
            await asyncio.sleep(bear(flight, one.cause, retries))


def bear(flight: Flight, cause: CacheDaemonError, retries: int) -> float:
    """Count a failure; the seconds to pause after it. Raises the cause when `retries` were borne before, in a row."""
    flight.cause, flight.had = cause, flight.arrived
    if flight.failed >= retries:
        raise cause
    seconds = pause(int(flight.failed), cause)
    flight.failed += LATER if isinstance(cause, OriginUnavailable) and cause.retry_after else 1
    log.debug("%s goes on in %.1f s, after %g failures: %s", flight.ref, seconds, flight.failed, cause)
    return seconds


def pause(failed: int, cause: CacheDaemonError) -> float:
    """Seconds: random up to a bound that grows with each failure (full jitter), after what the origin asked for."""
    asked = cause.retry_after if isinstance(cause, OriginUnavailable) else None
    most = min(LONGEST_PAUSE, max(FIRST_PAUSE * 2 ** min(failed, 16), (asked or 0.0) / 2))
    return (asked or 0.0) + random.uniform(0, most)  # noqa: S311 - spreads load, keeps no secret
