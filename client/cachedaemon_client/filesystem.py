"""A read-only file system for fsspec: `shardcache://source/key` is read through the node's cache.

fsspec finds it by the entry point `shardcache` of its group `fsspec.specs`. This is the client's only module that needs
fsspec, and nothing else of the client imports it.

The daemon knows a key by fetching it, and has no list of those that it has not fetched. So `open` and `info` have a shard
brought, and `ls` tells what is local now. An outage is never told as an absence: only the origin's own word that there is
no such object is a FileNotFoundError.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

from cachedaemon_client import places
from cachedaemon_client.cache import ShardCache
from cachedaemon_client.connection import Connection, call
from cachedaemon_client.leased_file import LeasedFile, as_file

Entry = dict[str, Any]
"""What fsspec wants to know of a path: `name`, `size`, `type`."""


class ShardCacheFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The sources of the node's daemon as folders, their shards as files.

    `socket`, `cache_dir` and `wait` (seconds) are those of `ShardCache`. What is not given is looked for with each use,
    since fsspec keeps instances for as long as the process lives. Instances may be shared between threads, forked with
    and pickled.
    """

    protocol = "shardcache"
    root_marker = ""

    def __init__(
        self,
        *args: Any,
        socket: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        wait: float = 600,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._socket = socket
        self._cache_dir = cache_dir
        self._wait = wait
        self._clients: dict[tuple[str, str, str | None], ShardCache] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """`source/key`; of a list, each."""
        stripped = super()._strip_protocol(path)
        return stripped.removeprefix("/") if isinstance(stripped, str) else stripped

    # ---- reading

    def _open(self, path: str, mode: str = "rb", **_: Any) -> LeasedFile:
        """The shard as a file, once it is local; leased until the file is closed."""
        if mode != "rb":
            raise _read_only(path)
        source, key = self._split(path)
        if not key:
            raise IsADirectoryError(errno.EISDIR, "a source is a folder of shards, not a shard", path)
        return as_file(self._shards_of(source).open(key))

    @contextlib.contextmanager
    def local_path(self, path: str) -> Iterator[Path]:
        """The shard's local path, which is good for as long as the block runs: the lease ends with it."""
        source, key = self._split(path)
        with self._shards_of(source).open(key) as shard:
            yield shard.path

    # ---- looking

    def info(self, path: str, **_: Any) -> Entry:
        """Name, size in bytes, type, and of a shard its digest as `etag`. One that is not local is fetched to know.

        A path below which shards are local is a folder, unless a shard of just that key is local too.
        """
        source, key = self._split(path)
        if not key:
            return self._info_of_source(source)
        cache, name = self._shards_of(source), f"{source}/{key}"
        if not cache.is_local(key) and next(self._local(source, key + "/", 1), None):
            return _folder(name)
        with cache.open(key) as shard:
            return _file(name, shard.size, shard.path) | {"etag": _digest(shard.path)}

    def _info_of_source(self, source: str) -> Entry:
        if source:
            next(self._local(source, "", 1), None)  # raises SourceUnknown
        return _folder(source)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is such a path; as `info`, and every failure but an absence is raised."""
        return self._type_of(path) is not None

    def isfile(self, path: str) -> bool:
        """Whether the path is a shard that is one file; as `exists`."""
        return self._type_of(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether the path is a source, or has local shards below it; as `exists`."""
        return self._type_of(path) == "directory"

    def _type_of(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 - fsspec's signature
        """What is local below a path at this moment, one level of it: no listing of the origin. Nothing is fetched.

        Without a path, the daemon's sources. FileNotFoundError when nothing below a source's folder is local.
        """
        source, key = self._split(path)
        found = self._level(source, key) if source else [_folder(name) for name in self._sources()]
        if key and not found:
            raise FileNotFoundError(errno.ENOENT, "no shard of that key, and none below it, is local", path)
        return found if detail else [entry["name"] for entry in found]

    def _level(self, source: str, key: str) -> list[Entry]:
        """The shard of that key alone, where it is local, else what lies below."""
        below = f"{key}/" if key else ""
        found: dict[str, Entry] = {}
        for row in self._local(source, key):
            if row["key"] == key:
                return [self._listed(row)]
            if row["key"].startswith(below):
                first, deeper, _ = row["key"][len(below) :].partition("/")
                name = f"{source}/{below}{first}"
                found[name] = _folder(name) if deeper else self._listed(row)
        return list(found.values())

    def _listed(self, row: dict[str, Any]) -> Entry:
        local = self._shards_of(row["source"]).local_path(row["path"])
        return _file(f"{row['source']}/{row['key']}", row["size"], local)

    def walk(self, path: str, maxdepth: int | None = None, on_error: Any = None, **how: Any) -> Iterator[Any]:
        """As fsspec's, of what is local; but only an absence is passed over, where it would pass over any OSError."""
        return iter(super().walk(path, maxdepth=maxdepth, on_error=on_error or _pass_over, **how))

    # ---- the daemon

    def _split(self, path: str) -> tuple[str, str]:
        source, _, key = self._strip_protocol(path).partition("/")
        return source, key

    def _shards_of(self, source: str) -> ShardCache:
        where = places.socket_path(self._socket), places.cache_folder(self._cache_dir)
        cache = self._clients.get((source, *where))
        if cache is None:
            made = ShardCache(source, socket=where[0], cache_dir=where[1], wait=self._wait)
            cache = self._clients.setdefault((source, *where), made)
        return cache

    def _sources(self) -> list[str]:
        with contextlib.closing(Connection(places.socket_path(self._socket))) as link:
            return sorted(call(link, "GET", "/v1/hello", wait=self._wait)["sources"])

    def _local(self, source: str, prefix: str, limit: int = 1000) -> Iterator[dict[str, Any]]:
        """What `GET /v1/shards` says of a source's local shards, page by page."""
        query: dict[str, Any] = {"source": source, "prefix": prefix, "limit": limit}
        while True:
            page = self._shards_of(source).call("GET", f"/v1/shards?{urlencode(query)}")
            yield from page["shards"]
            if page["next"] is None:
                return
            query["after"] = page["next"]

    # ---- writing

    def _refused(self, path: Any = None, *_: Any, **__: Any) -> NoReturn:
        """A cache is read: OSError (EROFS)."""
        raise _read_only(path)

    def _refused_to(self, _: Any = None, path: Any = None, **__: Any) -> NoReturn:
        """The same, where the second path would be written to."""
        raise _read_only(path)

    mkdir = makedirs = rmdir = touch = pipe_file = rm = rm_file = _refused
    put_file = cp_file = mv = _refused_to


def _read_only(path: Any) -> OSError:
    return OSError(errno.EROFS, "shardcache:// is read only: write to where the source is, not to its cache", path)


def _folder(name: str) -> Entry:
    return {"name": name, "size": 0, "type": "directory"}


def _file(name: str, size: int, local: str | os.PathLike[str]) -> Entry:
    """A shard; one that its source unpacks is no file for fsspec, nor a folder of other shards."""
    return {"name": name, "size": size, "type": "other" if os.path.isdir(local) else "file"}


def _digest(shard: Path) -> str | None:
    """What the shard's meta file says; None where the shard has just been damaged or removed behind the daemon's back."""
    meta = shard.parents[2] / "meta" / shard.parent.name / f"{shard.name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(meta.read_bytes())["digest"])
    return None


def _pass_over(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
