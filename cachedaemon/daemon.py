"""The daemon: every object is built once here, and its life reads from top to bottom in `serve`."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import sys
import uuid
from collections.abc import Callable

from cachedaemon import __version__, garbage, listen, logs, pools, upkeep
from cachedaemon.ahead import Ahead
from cachedaemon.archives.workers import Limits, Workers
from cachedaemon.background import Background
from cachedaemon.cache import Cache
from cachedaemon.config import Address, Handed, Settings, changes, goes_to_journal
from cachedaemon.errors import CacheDaemonError, ConfigError, StartError
from cachedaemon.events import Events
from cachedaemon.jobs import Jobs
from cachedaemon.ledger import Ledger
from cachedaemon.metrics import Metrics
from cachedaemon.model import Caps, Ref
from cachedaemon.noticed import Noticed
from cachedaemon.planfiles import PlanFiles
from cachedaemon.plans import Plans
from cachedaemon.prefetch import Prefetch
from cachedaemon.regrets import Regrets
from cachedaemon.server import Api, Entrances, Gauges, Live, Page, UserLimits, View, Watch, application, scraping
from cachedaemon.service import Notices
from cachedaemon.sources import Configured, Sources
from cachedaemon.store import Store
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.start import refuse_taken
from cachedaemon.turns import Turns
from cachedaemon.upkeep import Upkeep
from cachedaemon.verify import Verify
from cachedaemon.vitals import Vitals
from cachedaemon.watch import Folders

log = logging.getLogger(__name__)

CHECKERS = 2
"""Processes that check and unpack archives at once."""
DRAIN = 8.0
"""Seconds from the signal to the end, whatever hangs: a killed daemon leaves nothing that the next one cannot clear."""

Reload = Callable[[], Settings]


class Daemon:
    """One daemon with its configuration in force."""

    def __init__(self, settings: Settings, reload: Reload, handed: Handed) -> None:
        self._reload = reload
        self._handed = handed
        self._notices = Notices(handed.notify)
        self.settings = settings
        self._generation = uuid.uuid4().hex
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._tasks = Background()
        cache = settings.cache
        self.metrics = Metrics(__version__)
        self.events = Events()
        self.noticed = Noticed(self.events)
        self.folders = Folders(self.noticed)
        self.plans = Plans()
        self.sources = Sources(self.metrics)
        self.sources.take(self.sources.made(settings.sources, settings.fetch, anew=True))
        self.store = Store(Layout(cache.dir), Modes.for_group(settings.server.socket_group))
        self._entrances = Entrances(self.store.trouble)
        self.workers = Workers(limits=_limits(settings), most=CHECKERS)
        self.turns = Turns(settings.fetch.concurrency, self.sources.limits(), self.sources.rates())
        self.cache = Cache(
            ledger=Ledger(_caps(settings), self._next_use),
            store=self.store,
            sources=self.sources,
            workers=self.workers,
            turns=self.turns,
            metrics=self.metrics,
            events=self.events,
            grace=cache.grace,
            retries=settings.fetch.retries,
        )
        self.cache.absent = self._look_for_folder
        self.jobs = Jobs()
        self.prefetch = Prefetch(self.cache, self.jobs, self._width)
        self.verify = Verify(self.cache, self.store, self.jobs)
        self.regrets = Regrets(self.cache.ledger, self.metrics)
        self.plan_files = PlanFiles(self.plans, self.store, self.cache.ledger, self.regrets)
        self.ahead = Ahead(self.cache, self.plans, self.plan_files, lambda: self.settings.fetch.concurrency)
        self.upkeep = Upkeep(self.cache, self.store, self.plans, self.plan_files, lambda: self.settings.cache.scan)
        self.view = View(self.cache, self.plans, self.regrets, self.upkeep, str(cache.dir))
        self.live = Live(
            cache=self.cache,
            plans=self.plans,
            regrets=self.regrets,
            view=self.view,
            metrics=self.metrics,
            usage=self.store.usage,
            policy=self._policy,
        )
        self.vitals = Vitals(self.store, self.metrics)
        gauges = Gauges(self.cache, self.plans, self.regrets, self.upkeep, self.vitals)
        self.metrics.watch(gauges.read)

    def _next_use(self, ref: Ref) -> float:
        """When a shard is used next, as far as the policy wants to know."""
        return self.plans.next_use(ref) if self.settings.cache.policy == "auto" else math.inf

    def _policy(self) -> str:
        return self.settings.cache.policy

    def _width(self, source: str) -> int:
        return min(self.settings.fetch.concurrency, self.sources.limits().get(source, 1))

    # ---- life

    async def serve(self) -> None:
        """From the locks to the drain. Raises `StartError`."""
        self._take_signals()
        await pools.begin(asyncio.get_running_loop())
        self.store.begin()
        alive = asyncio.create_task(self._notices.live(self._handed.watchdog), name="alive")
        listener, scrapes = self._listeners()
        await asyncio.to_thread(listener.lock)
        for doubt in listener.doubts:
            log.warning("%s", doubt)
        try:
            if self.settings.server.http and not scrapes:
                scrapes = [await self._port(self.settings.server.http)]
            background = await self._begin()
            self._tasks.begin(self.live.keep(), "history")
            api = application(self._api(), self._watch(), lambda: self._generation)
            asked = await self._entrances.open(api, listener.links())
            await self._entrances.open(scraping(self._watch(), self._page()), scrapes)
            self._tasks.begin(self._entrances.keep(listener, asked), "socket")
            self._tell_ready()
            await self._stop.wait()
            self._ready.clear()
            self._notices.stopping()
            drain = asyncio.create_task(self._drain(background), name="drain")
            await asyncio.wait([drain], timeout=DRAIN)
        finally:
            await asyncio.to_thread(listener.close)
            alive.cancel()
            self._notices.close()
        if drain.done():
            drain.result()
        else:
            log.warning("something did not end within %g s and is left behind; the next start clears it", DRAIN)

    def _listeners(self) -> tuple[listen.Listener | listen.Passed, list[socket.socket]]:
        """What the daemon is asked at, and what it is scraped at, as far as that was passed."""
        server = self.settings.server
        unix, tcp = listen.passed(self._handed.sockets)
        if unix:
            return listen.Passed(server.socket, unix), tcp
        return listen.Listener(server.socket, server.socket_mode, server.socket_group), tcp

    async def _begin(self) -> asyncio.Task[None]:
        """Take the cache into use, and begin with what goes on beside the walk."""
        async with self._notices.extending("reading the cache directory"):
            await self._open_cache()
        others = {"ahead": self.ahead.run, "vitals": self.vitals.run, "garbage": garbage.collect}
        background = asyncio.create_task(self.upkeep.run(**others), name="upkeep")
        await self.folders.follow(self.sources.all())
        return background

    def _tell_ready(self) -> None:
        self._ready.set()
        self._notices.ready(self._serving())
        self._look_at(self.sources.all())
        place, cache = self.settings.server.socket, self.settings.cache.dir
        log.info("ready: socket %s, cache %s, sources %s", place, cache, self._named())

    async def _port(self, address: Address) -> socket.socket:
        """The socket for scraping. Where another daemon has the cache directory too, that is what is told."""
        try:
            return listen.tcp(*address)
        except StartError:
            await asyncio.to_thread(refuse_taken, self.store.layout)
            raise

    async def _open_cache(self) -> None:
        with garbage.paused():
            await self._admit_what_is_there()
            garbage.keep()

    async def _admit_what_is_there(self) -> None:
        opened = await self.store.open([source.mark for source in self.sources.all()])
        for warning in opened.warnings:
            log.warning("%s", warning)
        for path in opened.foreign[:20]:
            log.warning("%s is not the daemon's: it is left alone", path)
        if len(opened.foreign) > 20:
            log.warning("%d more files in the cache directory are not the daemon's", len(opened.foreign) - 20)
        upkeep.admit(self.cache, opened)

    def _api(self) -> Api:
        return Api(
            cache=self.cache,
            jobs=self.jobs,
            prefetch=self.prefetch,
            verify=self.verify,
            plans=self.plans,
            plan_files=self.plan_files,
            events=self.events,
            noticed=self.noticed,
            metrics=self.metrics,
            view=self.view,
            live=self.live,
            policy=self._policy,
            limits=UserLimits(lambda: self.settings.server, self.plans, self.jobs),
            admin_group=self.settings.server.admin_group,
        )

    def _watch(self) -> Watch:
        return Watch(self.metrics, self.view, self._ready.is_set)

    def _page(self) -> Page | None:
        return Page(self.live) if self.settings.server.page else None

    def _serving(self) -> str:
        """For one line of the service manager's."""
        return f"serving {self._named() or 'no source'}"

    def _named(self) -> str:
        return ", ".join(source.name for source in self.sources.all())

    async def _drain(self, background: asyncio.Task[None]) -> None:
        """Stop listening, end flights to their last disk call, tell waiters, write the last uses."""
        await self._entrances.shut()
        await self._tasks.cancel()
        await self.folders.close()
        await self.prefetch.close()
        await self.verify.close()
        await self.cache.drain()
        await self._entrances.close()
        background.cancel()
        await asyncio.wait([background])
        await self.upkeep.note_uses()
        await self.regrets.close()
        await self.workers.close()
        await self._leave_origins()
        await self.cache.let_go()
        await asyncio.to_thread(self.store.close)
        log.info("stopped")

    async def _leave_origins(self) -> None:
        """All at once: each mount that hangs takes a moment, and one that fails keeps no other from being left."""
        sources = self.sources.all()
        left = await asyncio.gather(*(source.origin.close() for source in sources), return_exceptions=True)
        for source, failed in zip(sources, left, strict=True):
            if failed is not None:
                log.warning("source %s: its origin was not closed (%s)", source.name, type(failed).__name__)

    # ---- signals

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._spawn_reload)

    def _spawn_reload(self) -> None:
        if self._stop.is_set():
            return
        self._tasks.begin(self._take_new_settings(), "reload")

    def _look_at(self, sources: list[Configured]) -> None:
        """Say early which source is not there; nothing waits for it, and it may come back at any time."""
        for source in sources:
            self._tasks.begin(self._warn_of(source), f"look at {source.name}")

    async def _warn_of(self, source: Configured) -> None:
        for said in (source.doubt(), await source.trouble()):
            if said and source in self.sources.all():
                log.warning("%s", said)

    async def _take_new_settings(self) -> None:
        """SIGHUP: take over what can change at run time; a configuration with an error changes nothing."""
        await self._ready.wait()
        async with self._reloading:
            self._notices.reloading()
            try:
                new = await asyncio.to_thread(self._reload)
                now, later = changes(self.settings, new)
                await self._apply(new)
            except CacheDaemonError as cause:
                what = "the configuration is not reloaded" if isinstance(cause, ConfigError) else "reloading failed"
                log.error("%s: %s", what, str(cause).replace("\n", "; "))  # noqa: TRY400
                self._notices.ready(f"{self._serving()}; {what}")
                return
            for name in later:
                log.warning("%s takes effect at the next start", name)
            log.info("reloaded: %s", ", ".join(now) or "nothing that can change at run time")
            self._notices.ready(self._serving())

    async def _apply(self, new: Settings) -> None:
        before = self.sources.all()
        await self.cache.renewal.take(self.sources.made(new.sources, new.fetch, anew=self.settings.fetch != new.fetch))
        self.settings = new
        self._generation = uuid.uuid4().hex
        self.cache.ledger.caps = _caps(new)
        self.cache.retries = new.fetch.retries
        self.cache.grace.seconds = new.cache.grace
        self.workers.limits = _limits(new)
        self.turns.limit(new.fetch.concurrency, self.sources.limits(), self.sources.rates())
        logs.set_level(new.log.level)
        self.cache.room.changed()
        await self.folders.follow(self.sources.all())
        self._look_at([one for one in self.sources.all() if one not in before])

    async def _look_for_folder(self) -> None:
        """Somebody may have removed the cache directory, or a part of it: it is made anew, and what was in it is gone."""
        if await self.cache.renewal.remake():
            log.warning("the cache directory was removed: it is made anew")
            try:
                await self.plan_files.end_all()
            finally:
                self._generation = uuid.uuid4().hex
                await self.upkeep.look()


def _caps(settings: Settings) -> Caps:
    cache = settings.cache
    return Caps(cache.max_shards, cache.max_bytes, cache.min_free)


def _limits(settings: Settings) -> Limits:
    limits = settings.cache.unpack_limits
    return Limits(limits.members, limits.bytes, limits.seconds)


async def _main(settings: Settings, reload: Reload, handed: Handed) -> None:
    await Daemon(settings, reload, handed).serve()


def run(settings: Settings, reload: Reload, handed: Handed) -> None:
    """Serve until a signal ends it. A thread that hangs in a dead mount cannot be joined, so the process just ends.

    Raises `StartError`.
    """
    import uvloop  # noqa: PLC0415 - the command line's other commands do without

    logs.configure(settings.log.format, settings.log.level, is_journal=goes_to_journal(sys.stderr.fileno()))
    _allow_descriptors()
    garbage.spare_the_loop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(settings, reload, handed))
        logging.shutdown()
        os._exit(0)


def _allow_descriptors() -> None:
    """As many as the hard limit allows: every waiter has a connection, and every promise a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
