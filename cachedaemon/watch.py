"""Watched folders: each has a process of its own that looks (`mounts/watched.py`), and whose word is passed on here."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any
from urllib.parse import unquote, urlsplit

from cachedaemon.noticed import Noticed
from cachedaemon.origins.mounted import Link, Mounted
from cachedaemon.sources import Configured

log = logging.getLogger(__name__)

SILENCE = 30.0
"""Seconds without a sign of life after which a folder counts as one that does not answer."""
AGAIN = 1.0
"""Seconds before a process that has ended is started again."""


class Folders:
    """Watches the folders of the sources that want it."""

    def __init__(self, noticed: Noticed) -> None:
        self._noticed = noticed
        self._watched: dict[str, tuple[Configured, asyncio.Task[None]]] = {}

    async def follow(self, sources: list[Configured]) -> None:
        """Watch those of these that want it, and no others; one that is as it was is watched on."""
        wanted = {source.name: source for source in sources if source.settings.watch}
        await self._leave([name for name, (source, _) in self._watched.items() if wanted.get(name) is not source])
        for name, source in wanted.items():
            if name not in self._watched:
                self._noticed.begin(name)
                task = asyncio.create_task(_Watching(source, self._noticed).run(), name=f"watch {name}")
                self._watched[name] = source, task

    async def close(self) -> None:
        """Watch nothing any more. A folder that hangs is not waited for."""
        await self._leave(list(self._watched))

    async def _leave(self, names: list[str]) -> None:
        tasks = [self._watched.pop(name)[1] for name in names]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for name in names:
            self._noticed.end(name)


class _Watching:
    """One folder."""

    def __init__(self, source: Configured, noticed: Noticed) -> None:
        self._source = source
        self._name = source.name
        self._noticed = noticed
        self._replaced = False

    async def run(self) -> None:
        """Until it is cancelled."""
        # Apart from the process that reads: a burst of files must not slow transfers, nor a hung transfer keep looks away.
        mount = Mounted(unquote(urlsplit(self._source.settings.url).path), 1)
        try:
            while True:
                await self._listen(mount)
                await asyncio.sleep(AGAIN)
        finally:
            await mount.close()

    async def _listen(self, mount: Mounted) -> None:
        try:
            link = await mount.ask({"watch": self._source.settings.settle})
        except OSError as cause:
            self._away(f"cannot be watched: {cause.strerror or cause}")
            return
        try:
            while True:
                await self._take(await self._heard(link))
        except OSError as cause:
            if cause.errno != errno.ENOTCONN:  # its process has ended: another begins anew
                self._away(f"cannot be watched: {cause.strerror or cause}")
        finally:
            link.close()

    async def _heard(self, link: Link) -> dict[str, Any]:
        """What is said next; while nothing is, for however long, a folder that hangs may come back."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    said: dict[str, Any] = await link.hear()
                    return said
            except TimeoutError:
                self._away(f"does not answer for {SILENCE:g} s")

    async def _take(self, said: dict[str, Any]) -> None:
        if "away" in said:
            self._away(f"cannot be read: {said['away']}")
        elif "polls" in said:
            log.warning("source %s: its folder is looked at every few seconds: %s", self._name, said["polls"])
        elif "gone" in said:
            self._noticed.gone(self._name, said["gone"])
        elif "looked" in said and self._noticed.back(self._name):
            log.info("source %s: its folder is there again", self._name)
        for key, device, inode, mtime_ns, size in said.get("complete", ()):
            self._appeared(key, size, f"{device:x}-{inode:x}-{mtime_ns:x}-{size:x}")
        await asyncio.sleep(0)  # what was said already is had without waiting, and others want their turn

    def _appeared(self, key: str, size: int, version: str) -> None:
        """A shard of a source that is never asked again is what it was first: a second telling would hand out the first."""
        if not (self._source.direct and self._noticed.knows(self._name, key)):
            self._noticed.appeared(self._name, key, size, version)
        elif not self._replaced:
            self._replaced = True
            log.warning(
                "source %s: %r was changed after it had appeared, and is not told again: allowed are new names, "
                "a longer settle, or revalidate",
                self._name,
                key,
            )

    def _away(self, why: str) -> None:
        message = f"source {self._name}: its folder {why}"
        if self._noticed.away(self._name, message):
            log.warning("%s", message)
