"""An HTTP/1.1 origin on a loopback port that lies on request; in a thread of the test, or as a process of its own.

In a test::

    with Origin() as origin:
        shard = origin.put("a.bin", 10 << 20, cut=[4 << 20])
        ...
        assert shard.gets == 2

As a process (benches, SIGSTOP): `python -m tests.fakes.origin --port-file F --objects 100 --size 1048576`, or
`OriginProcess`. The process counts too: `GET /-/stats` answers JSON, `GET /-/zero` forgets.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from tests.fakes import packing
from tests.fakes.origin_object import Gate, Object, Request, Status, busy
from tests.fakes.origin_wire import Connection, Pace, Shared, Wire
from tests.fakes.waiting import freeze, thaw, until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

__all__ = ["Gate", "Object", "Origin", "OriginProcess", "Request", "Status", "busy"]

T = TypeVar("T")


class Origin:
    """The origin in a thread with a loop of its own. Objects may be put and changed at any time."""

    def __init__(
        self,
        *,
        link_bps: float | None = None,
        connection_bps: float | None = None,
        keep_alive: bool = True,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """Limits in bytes a second: over all connections, and for each."""
        self.shared = Shared(link=Pace(link_bps), connection_bps=connection_bps, keep_alive=keep_alive)
        self.shared.thawed.set()
        self.port = port
        self._tls = tls
        self._loop = new_loop()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._hole: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="origin", daemon=True)

    def __enter__(self) -> Self:
        """Listening when it returns."""
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        """Everything closed; the thread has ended."""
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """Prefix of all objects, with the last slash."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/"

    def at(self, name: str) -> str:
        """The URL of one object."""
        return self.url + quote(name)

    def put(self, name: str, size: int = 0, **how: Any) -> Object:
        """Offer an object (again); `how` are attributes of `Object`."""
        made = self.shared.objects[name] = Object(name, size, **how)
        return made

    def remove(self, name: str) -> None:
        """From now on 404."""
        del self.shared.objects[name]

    def default(self, make: Callable[[str], Object | None] | None) -> None:
        """Names that were not put are made by `make(name)` when first asked for; None answers 404."""
        self.shared.default = make

    def __getitem__(self, name: str) -> Object:
        """The object of that name, put or made by default."""
        return self.shared.objects[name]

    @property
    def log(self) -> list[Request]:
        """All requests so far, in order."""
        return self.shared.log

    @property
    def gets(self) -> int:
        """GETs of all objects."""
        return sum(o.gets for o in list(self.shared.objects.values()))

    @property
    def heads(self) -> int:
        """HEADs of all objects."""
        return sum(o.heads for o in list(self.shared.objects.values()))

    @property
    def sent(self) -> int:
        """Body bytes of all objects."""
        return sum(o.sent for o in list(self.shared.objects.values()))

    def zero(self) -> None:
        """Forget all that was counted and logged."""
        for each in list(self.shared.objects.values()):
            each.zero()
        self.shared.log.clear()
        self.shared.peak = self.shared.open

    def limit(self, bps: float | None) -> None:
        """Change the bandwidth of the whole origin."""
        self.shared.link.bps = bps

    def down(self) -> None:
        """Running connections break, new ones are refused."""
        self._fill(close=True)
        self._call(self._close())

    def up(self) -> None:
        """Back on the same port after `down` or `black_hole`."""
        self._fill(close=True)
        self._call(self._listen())

    def freeze(self) -> None:
        """Accept, and say nothing, also in the middle of a body."""
        self._loop.call_soon_threadsafe(self.shared.thawed.clear)
        self._call(asyncio.sleep(0))

    def thaw(self) -> None:
        """Go on where it was frozen."""
        self._loop.call_soon_threadsafe(self.shared.thawed.set)

    def black_hole(self) -> None:
        """SYNs are dropped: connecting hangs. Running connections break."""
        self.down()
        self._fill(close=False)

    def _fill(self, *, close: bool) -> None:
        """A listener whose accept queue is full makes Linux drop further SYNs."""
        while self._hole:
            self._hole.pop().close()
        if close:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(0)
        self._hole = [listener]
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._hole.append(filler)

    def _call(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _listen(self) -> None:
        if self._server:
            return
        self._server = await self._loop.create_server(self._wire, "127.0.0.1", self.port, backlog=1024, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def _wire(self) -> Wire:
        return Wire(asyncio.StreamReader(loop=self._loop), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> None:
        task = self._loop.create_task(Connection(self.shared, reader, writer, gone).serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        if self._server:
            self._server.close()
            self._server = None
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _process(args: list[str]) -> Any:
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.origin", *args], cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


class OriginProcess:
    """The origin as a process: `with OriginProcess(objects=100, size=1 << 20, latency=0.05) as origin`."""

    def __init__(self, **options: object) -> None:
        """Options of the command line, with `_` for `-`."""
        self._stack = contextlib.ExitStack()
        self._options = options
        self.port = 0
        self.pid = 0

    def __enter__(self) -> Self:
        """Listening when it returns."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cd-")))
        args = [f"--{name.replace('_', '-')}={value}" for name, value in self._options.items()]
        process = self._stack.enter_context(_process([f"--port-file={folder / 'port'}", *args]))
        until((folder / "port").exists, 20, "the origin's port file")
        self.port, self.pid = int((folder / "port").read_text()), process.pid
        return self

    def __exit__(self, *_: object) -> None:
        """Killed and waited for."""
        self._stack.close()

    @property
    def url(self) -> str:
        """Prefix of all objects, with the last slash."""
        return f"http://127.0.0.1:{self.port}/"

    def stats(self) -> dict[str, int]:
        """Counts so far: gets, heads, sent, connections, peak (connections at once), most (GETs of one object)."""
        return dict(json.loads(self._get("-/stats")))

    def zero(self) -> None:
        """Forget what was counted."""
        self._get("-/zero")

    def freeze(self) -> None:
        """SIGSTOP: the kernel goes on accepting and confirming."""
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        thaw(self.pid)

    def _get(self, path: str) -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", "/" + path)
            return connection.getresponse().read()


def shard_name(number: int, suffix: str = "bin") -> str:
    """Name of the process form's object `number`."""
    return f"shard-{number:05d}.{suffix}"


def _parsed(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests.fakes.origin", description=__doc__.split("\n", 1)[0] if __doc__ else ""
    )
    parser.add_argument("--port-file", type=Path, required=True, help="written, complete, once it listens")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--objects", type=int, default=100, help="shard-00000.bin and so on")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of each")
    parser.add_argument(
        "--members", type=int, default=0, help="make them zips of so many images (.zip), --size is theirs"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--bps", type=float, help="bytes a second of one transfer")
    parser.add_argument("--connection-bps", type=float, help="bytes a second of one connection")
    parser.add_argument("--link-bps", type=float, help="bytes a second over all")
    parser.add_argument("--ranges", choices=("yes", "no", "lie"), default="yes")
    return parser.parse_args(args)


def _offer(origin: Origin, said: argparse.Namespace) -> None:
    how = {"latency": said.latency, "bps": said.bps, "ranges": said.ranges}
    for number in range(said.objects):
        if said.members:
            packed = packing.zip_bytes(packing.image_like(said.members, number, said.size))
            origin.put(shard_name(number, "zip"), data=packed, **how)
        else:
            origin.put(shard_name(number), said.size, **how)
    origin.put("-/stats", on_get=lambda o, _: o.replace(data=json.dumps(_stats(origin)).encode()))
    origin.put("-/zero", on_get=lambda *_: origin.zero())


def _stats(origin: Origin) -> dict[str, int]:
    shards = [o for name, o in origin.shared.objects.items() if not name.startswith("-/")]
    return {
        "gets": sum(o.gets for o in shards),
        "heads": sum(o.heads for o in shards),
        "sent": sum(o.sent for o in shards),
        "most": max((o.gets for o in shards), default=0),
        "connections": origin.shared.connections,
        "peak": origin.shared.peak,
    }


def main(args: list[str] | None = None) -> None:
    """Serve until killed."""
    import uvloop

    said = _parsed(args)
    limits = {"link_bps": said.link_bps, "connection_bps": said.connection_bps}
    origin = Origin(port=said.port, new_loop=uvloop.new_event_loop, **limits)
    _offer(origin, said)
    with origin:
        part = said.port_file.with_suffix(".part")
        part.write_text(str(origin.port))
        part.rename(said.port_file)
        signal.pause()


if __name__ == "__main__":
    main()
