"""A stand-in for an AIStore cluster on loopback ports: a gateway, targets and a node of transformations, in a thread.

In a test::

    with Cluster() as cluster:
        cluster.put("b", "a.bin", b"...")
        cluster.url  # the gateway: GET /v1/objects/b/a.bin?provider=ais

It answers as AIStore's own nodes do: a GET is sent on with 301 and everything else of an object with 307, to another
target each time, by a URL that holds once; a cold object waits for all of it; a part has the checksum of the whole.
`test_ais_stand_in.py` drives it with AIStore's own client.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import parse_qs, quote, unquote

from aiohttp import web

from tests.fakes.ais_object import Bucket, Refusal, Stored, asked_range, page_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
STEP = 1 << 16
"""Bytes that are written at once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came in."""

    node: str
    """`gateway`, `target-0`, `target-1`, `etl`."""
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By lower-case name."""


class Cluster:
    """The cluster in a thread with a loop of its own. Objects may be put and changed at any time."""

    def __init__(self, *, targets: int = 2, tls: ssl.SSLContext | None = None) -> None:
        """Not listening yet. `token` and the others may be set at any time."""
        self.token: str | None = None
        """What `Authorization: Bearer` must give."""
        self.strict = False
        """Whether targets ask for the token as well, not the gateway alone."""
        self.escapes = True
        """Whether the gateway escapes what it sends on; releases before 3.26 put the decoded path into `Location`."""
        self.page = 1000
        """Names of a listing's page at the most."""
        self.folders: set[str] = set()
        """Names that are listed as folders are, besides the objects."""
        self.on_asked: Callable[[Asked], None] = lambda _: None
        """Called with each request before it is looked at."""
        self.log: list[Asked] = []
        self.buckets: dict[Bucket, dict[str, Stored]] = {}
        self.etls: dict[str, tuple[Callable[[bytes], bytes], str]] = {}
        self._nodes = {name: _Node(self, name, tls) for name in _names(targets)}
        self._turn = 0
        self._valid: deque[str] = deque(maxlen=100)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ais", daemon=True)

    def __enter__(self) -> Self:
        """All nodes listen when it returns."""
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        """Everything closed; the thread has ended."""
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The gateway."""
        return self._nodes["gateway"].url

    @property
    def targets(self) -> list[str]:
        """Names of the targets."""
        return [name for name in self._nodes if name.startswith("target")]

    def url_of(self, node: str) -> str:
        """Where a node listens."""
        return self._nodes[node].url

    def put(self, bucket: Bucket | str, name: str, data: bytes, **how: Any) -> Stored:
        """Offer an object (again), as a new version; `how` are attributes of `Stored`."""
        objects = self.buckets.setdefault(Bucket(bucket) if isinstance(bucket, str) else bucket, {})
        before = objects.get(name)
        version = str(int(before.version or 0) + 1 if before else 1)
        objects[name] = Stored(data, **({"version": version} | how))
        return objects[name]

    def asked(self, node: str, method: str = "GET") -> list[Asked]:
        """Requests of that method that came to a node, whose name begins so."""
        return [one for one in self.log if one.node.startswith(node) and one.method == method]

    def down(self, *nodes: str) -> None:
        """Running connections break, new ones are refused; of these nodes, else of all."""
        for name in nodes or self._nodes:
            self._call(self._nodes[name].close())

    def up(self) -> None:
        """All nodes answer, on the ports they had."""
        for node in self._nodes.values():
            self._call(node.listen())
            self._loop.call_soon_threadsafe(node.thawed.set)

    def freeze(self, *nodes: str) -> None:
        """These nodes accept and say nothing until `up`; without a name, the targets."""
        for name in nodes or self.targets:
            self._loop.call_soon_threadsafe(self._nodes[name].thawed.clear)
        self._call(asyncio.sleep(0))

    def _call(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    # -- what the nodes do

    async def answer(self, node: str, request: web.Request) -> web.StreamResponse:
        """The answer of a node; errors in JSON."""
        asked = _asked(node, request)
        self.log.append(asked)
        self.on_asked(asked)
        await self._nodes[node].thawed.wait()
        try:
            self._check_token(asked)
            return await self._dispatch(asked, request)
        except Refusal as refused:
            # The rest of a body that nobody reads would be taken for the next request.
            await request.read()
            return web.Response(status=refused.status, headers=refused.headers, body=refused.body)

    def _check_token(self, asked: Asked) -> None:
        given = asked.headers.get("authorization")
        asks = asked.node == "gateway" or (self.strict and asked.node != "etl")
        if self.token is not None and asks and given != f"Bearer {self.token}":
            raise Refusal(401, "token required" if given is None else "invalid token")

    async def _dispatch(self, asked: Asked, request: web.Request) -> web.StreamResponse:
        version, _, rest = asked.path.lstrip("/").partition("/")
        kind, _, rest = rest.partition("/")
        if asked.node == "etl":
            return await self._transformed(asked.query["etl_name"], asked, rest)
        if version != "v1" or kind not in {"objects", "buckets", "health"}:
            raise Refusal(404, f"no handler of {asked.path!r}")
        if kind == "health":
            return web.Response()
        if kind == "buckets":
            return await self._bucket(asked, unquote(rest), request)
        if asked.node == "gateway":
            return self._sent_on(asked, request)
        self._check_redirected(asked)
        return await self._object(asked, rest, request)

    def _sent_on(self, asked: Asked, request: web.Request) -> web.Response:
        """To a target, and to another one each time: nobody may remember where an object was."""
        bucket, _ = self._split(asked, asked.path.removeprefix("/v1/objects/"))
        self._bucket_of(bucket)
        self._turn += 1
        target = self._nodes[f"target-{self._turn % len(self.targets)}"]
        stamp = f"pid=p1&utm={self._turn}"
        self._valid.append(str(self._turn))
        path = quote(asked.path, safe="/$&+,:;=@~" if self.escapes else _PRINTABLE)
        location = f"{target.url}{path}?{request.rel_url.raw_query_string}&{stamp}"
        return web.Response(status=301 if asked.method == "GET" else 307, headers={"Location": location})

    def _check_redirected(self, asked: Asked) -> None:
        stamp = asked.query.get("utm", "")
        if stamp not in self._valid:
            raise Refusal(400, f"{asked.node}: {asked.method}(obj) is expected to be redirected")
        self._valid.remove(stamp)

    def _split(self, asked: Asked, rest: str) -> tuple[Bucket, str]:
        name, _, key = rest.partition("/")
        provider = asked.query.get("provider") or "ais"
        provider = {"s3": "aws", "gs": "gcp", "az": "azure"}.get(provider, provider)
        return Bucket(name, provider, asked.query.get("namespace", "")), key

    def _bucket_of(self, bucket: Bucket) -> dict[str, Stored]:
        if bucket not in self.buckets:
            raise Refusal(404, f'{"" if bucket.provider == "ais" else "remote "}bucket "{bucket}" does not exist')
        return self.buckets[bucket]

    async def _bucket(self, asked: Asked, rest: str, request: web.Request) -> web.Response:
        bucket, _ = self._split(asked, rest)
        message = json.loads(await request.read() or b"{}")
        if asked.method == "POST" and message["action"] == "create-bck":
            self.buckets.setdefault(bucket, {})
            return web.Response()
        objects = self._bucket_of(bucket)
        if asked.method == "HEAD":
            return web.Response(headers={"Ais-Bucket-Props": json.dumps({"provider": bucket.provider})})
        if asked.method != "GET" or message.get("action") != "list":
            raise Refusal(400, f"invalid action {message.get('action')!r}")
        page = page_of(sorted({*objects, *self.folders}), message["value"], self.page)
        page["entries"] = [(name, 256 if name in self.folders else 64) for name in page["entries"]]
        return _listed(page, asked.headers.get("accept", ""))

    async def _object(self, asked: Asked, rest: str, request: web.Request) -> web.StreamResponse:
        bucket, name = self._split(asked, rest)
        objects = self._bucket_of(bucket)
        if asked.method == "PUT":
            data = await request.read()
            self.put(bucket, name, data)
            return web.Response()
        if name not in objects:
            raise Refusal(404, f"{bucket}/{name} does not exist")
        if asked.method == "HEAD":
            return _head(objects[name])
        if asked.method == "DELETE":
            del objects[name]
            return web.Response()
        if etl := asked.query.get("etl_name"):
            return await self._by_etl(etl, asked, f"{rest}")
        return await self._sent(objects[name], asked, request)

    async def _by_etl(self, etl: str, asked: Asked, rest: str) -> web.StreamResponse:
        if etl not in self.etls:
            raise Refusal(404, f'etl job "{etl}" does not exist - try starting new ETL')
        if self.etls[etl][1] == "hpull":
            namespace = f"&namespace={quote(asked.query['namespace'])}" if "namespace" in asked.query else ""
            query = f"etl_name={quote(etl)}&provider={asked.query.get('provider', 'ais')}{namespace}"
            location = f"{self._nodes['etl'].url}/v1/_/{quote(rest)}?{query}"
            return web.Response(status=307, headers={"Location": location})
        return await self._transformed(etl, asked, rest)

    async def _transformed(self, etl: str, asked: Asked, rest: str) -> web.StreamResponse:
        """What a transformation makes of an object; no checksum, no version, no parts."""
        bucket, name = self._split(asked, rest)
        transform, _ = self.etls[etl]
        return web.Response(body=transform(self._bucket_of(bucket)[name].data))

    async def _sent(self, stored: Stored, asked: Asked, request: web.Request) -> web.StreamResponse:
        self._refuse(stored)
        waits = [stored.cold.pop(0)] if stored.cold else []
        now = replace(stored, cold=waits if stored.streaming else [])
        if waits and not stored.streaming:
            await asyncio.sleep(waits[0])
        cut = stored.cut.pop(0) if stored.cut else None
        asks = asked.headers.get("range")
        if asks is None or stored.ranges == "no":
            head = web.StreamResponse(headers={**now.headers(), "Content-Length": str(len(now.body()))})
            return await _written(request, head, now.body(), cut, now.bps)
        part = asked_range(asks, len(now.data))
        if stored.ranges == "shift":
            part = slice(max(0, part.start - 1), part.stop)
        body = now.body()[part]
        said = {
            "Content-Range": f"bytes {part.start}-{part.stop - 1}/{len(now.data)}",
            "Content-Length": str(len(body)),
        }
        head = web.StreamResponse(status=206, headers={**now.headers(body), **said})
        return await _written(request, head, body, cut, now.bps)

    def _refuse(self, stored: Stored) -> None:
        status = stored.statuses.pop(0) if stored.statuses else stored.always
        if status is not None:
            raise Refusal(status, "refused", {"Retry-After": stored.retry_after} if stored.retry_after else None)


class _Node:
    """One of the cluster's servers; it keeps its port."""

    def __init__(self, cluster: Cluster, name: str, tls: ssl.SSLContext | None) -> None:
        self._cluster, self._name, self._tls = cluster, name, tls
        self._port = 0
        self.thawed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    async def listen(self) -> None:
        if self._runner is not None:
            return
        server = web.Server(lambda request: self._cluster.answer(self._name, request), access_log=None)
        self._runner = runner = web.ServerRunner(server, shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._tls, backlog=1024).start()
        self._port = int(runner.addresses[0][1])

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


_PRINTABLE = "".join(map(chr, range(32, 127)))


def _names(targets: int) -> list[str]:
    return ["gateway", *(f"target-{number}" for number in range(targets)), "etl"]


def _asked(node: str, request: web.Request) -> Asked:
    path, _, query = request.raw_path.partition("?")
    parsed = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Asked(node, request.method, unquote(path), parsed, headers)


def _head(stored: Stored) -> web.Response:
    present = {"Ais-Present": "false" if stored.cold else "true"}
    return web.Response(headers={**stored.headers(), **present, "Content-Length": str(len(stored.data))})


def _listed(page: dict[str, Any], accept: str) -> web.Response:
    """A page in the form that is asked for: both have names of their own for the members."""
    if "msgpack" not in accept:
        return web.json_response({**page, "entries": [{"name": name, "flags": f} for name, f in page["entries"]]})
    from msgspec import msgpack

    packed = {"UUID": page["uuid"], "ContinuationToken": page["continuation_token"], "Flags": page["flags"]}
    packed["Entries"] = [{"n": name, "f": flags} for name, flags in page["entries"]]
    return web.Response(body=msgpack.encode(packed), content_type="application/msgpack")


async def _written(
    request: web.Request, head: web.StreamResponse, body: bytes, cut: int | None, bps: float | None
) -> web.StreamResponse:
    """The answer, cut off after so many bytes of its body, and no faster than `bps`."""
    await head.prepare(request)
    stop = len(body) if cut is None else min(cut, len(body))
    step = STEP if bps is None else max(1, int(bps / 50))
    with suppress(ConnectionError):
        for at in range(0, stop, step):
            await head.write(body[at : min(at + step, stop)])
            if bps is not None:
                await asyncio.sleep(step / bps)
        if cut is None:
            await head.write_eof()
        elif request.transport is not None:
            request.transport.close()
    return head
