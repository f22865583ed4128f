"""The fakes do what tests rely on: the origin lies as told, the harness sees what is left behind."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import http.client
import io
import os
import socket
import sys
import tarfile
import time
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import content, disk, packing, toml
from tests.fakes.daemon import Daemon
from tests.fakes.exposition import samples
from tests.fakes.fusefs import fuse_fs
from tests.fakes.mounts import loop_fs, small_tmpfs
from tests.fakes.origin import Gate, Object, Origin, OriginProcess, Status, busy, shard_name
from tests.fakes.readers import Reader, run_all
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture
def origin() -> Iterator[Origin]:
    """An origin without objects."""
    with Origin() as made:
        yield made


@contextmanager
def answer(origin: Origin, name: str, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """One request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", origin.port, timeout=5)) as connection:
        connection.request(method, "/" + name, headers={k.replace("_", "-"): v for k, v in headers.items()})
        with connection.getresponse() as response:
            yield response


def raw(origin: Origin, name: str) -> socket.socket:
    """A plain socket on which the object was asked for."""
    sock = socket.create_connection(("127.0.0.1", origin.port), 5)
    sock.sendall(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


def to_end(sock: socket.socket) -> bytes:
    """All up to the end of the connection, body only."""
    with sock, sock.makefile("rb") as file:
        return file.read().partition(b"\r\n\r\n")[2]


def drain(sock: socket.socket, into: bytearray) -> None:
    """All that comes, up to the end of the connection or an error."""
    while part := sock.recv(65_536):
        into += part


# -- content


def test_content_is_the_same_from_any_offset() -> None:
    """Pieces, digests and `matches` agree; another seed, name or offset gives other bytes."""
    whole = content.data("a", 200_001, seed=3)
    assert len(whole) == 200_001
    assert b"".join(content.pieces("a", 65_530, 131_080, 3)) == whole[65_530:131_080]
    assert content.sha256("a", 200_001, 3) == hashlib.sha256(whole).hexdigest()
    assert whole[:1000] not in (content.data("a", 1000), content.data("b", 1000, 3), whole[65_536:66_536])


def test_matches_sees_every_difference(tmp_path: Path) -> None:
    """Right bytes pass; short, long and changed files do not."""
    path = tmp_path / "a"
    content.write(path, "a", 100_000)
    assert content.matches(path, "a", 100_000)
    whole = path.read_bytes()
    for wrong in (whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(wrong)
        assert not content.matches(path, "a", 100_000)


def test_archives_hold_their_members() -> None:
    """Zip and tar builders give the members back, and the same bytes each time."""
    members = packing.image_like(5, size=1000)
    packed = packing.zip_bytes(members, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == members
    assert packing.zip_bytes(members, zipfile.ZIP_DEFLATED) == packed
    with tarfile.open(fileobj=io.BytesIO(packing.tar_bytes(members, "gz"))) as tar:
        assert {m.name: tar.extractfile(m).read() for m in tar} == members  # type: ignore[union-attr]


# -- the honest origin


def test_whole_and_ranges(origin: Origin) -> None:
    """200, 206 in all three forms, 416, If-Range, If-Match and If-None-Match."""
    shard = origin.put("a b/c.bin", 100_000)
    whole, name = shard.whole(), "a%20b/c.bin"
    with answer(origin, name) as r:
        assert (r.status, r.read(), r.headers["ETag"]) == (200, whole, shard.tag)
    for wanted, part in (("0-0", whole[:1]), ("99990-", whole[99_990:]), ("-7", whole[-7:]), ("5-999999", whole[5:])):
        with answer(origin, name, Range=f"bytes={wanted}") as r:
            assert (r.status, r.read()) == (206, part)
            assert r.headers["Content-Range"].endswith("/100000")
    with answer(origin, name, Range="bytes=100000-") as r:
        assert r.status == 416
    with answer(origin, name, Range="bytes=5-", If_Range='"old"') as r:
        assert (r.status, r.read()) == (200, whole)
    with answer(origin, name, If_Match='"old"') as r:
        assert r.status == 412
    with answer(origin, name, If_None_Match=shard.tag or "") as r:
        assert r.status == 304


def test_log_and_counters(origin: Origin) -> None:
    """The raw request line and header fields are kept; GETs, HEADs and bytes are counted."""
    shard = origin.put("foo%27bar?sig=a%2Fb%2Bc%3D", data=b"signed")
    with answer(origin, "foo%27bar?sig=a%2Fb%2Bc%3D", X_Probe="1") as r:
        assert r.read() == b"signed"
    with answer(origin, "foo%27bar?sig=a%2Fb%2Bc%3D", "HEAD"):
        pass
    assert origin.log[0].line == "GET /foo%27bar?sig=a%2Fb%2Bc%3D HTTP/1.1"
    assert ("X-Probe", "1") in origin.log[0].fields
    assert (shard.gets, shard.heads, shard.sent, shard.peak) == (1, 1, 6, 1)
    origin.zero()
    assert (origin.gets, origin.heads, origin.sent, origin.log) == (0, 0, 0, [])


def test_default_objects(origin: Origin) -> None:
    """Names that were not put are made when asked for; None is 404."""
    origin.default(lambda name: Object(name, 10) if name.startswith("s") else None)
    with answer(origin, "s17") as r:
        assert r.read() == content.data("s17", 10)
    with answer(origin, "x") as r:
        assert r.status == 404
    assert origin["s17"].gets == 1


def test_many_at_once(origin: Origin) -> None:
    """32 connections at once are counted, all get their bytes."""
    gate = Gate(500_000)
    shard = origin.put("a", 1_000_000, gate=gate)
    socks = [raw(origin, "a") for _ in range(32)]
    until(lambda: shard.open == 32 and shard.sent == 32 * 500_000, 10)
    gate.open()
    whole = shard.whole()
    for sock in socks:
        with sock, sock.makefile("rb") as file:
            while file.readline() != b"\r\n":
                pass
            got = file.read(1_000_000)
        assert got == whole
    assert (shard.gets, shard.peak, origin.shared.peak) == (32, 32, 32)


def test_keep_alive(origin: Origin) -> None:
    """One connection carries several requests."""
    origin.put("a", 10)
    with closing(http.client.HTTPConnection("127.0.0.1", origin.port, timeout=5)) as connection:
        for _ in range(3):
            connection.request("GET", "/a")
            assert len(connection.getresponse().read()) == 10
    assert origin.shared.connections == 1


# -- the lying origin


@pytest.mark.parametrize("cut", [0, 1, 65_536, 999_999])
def test_cut(origin: Origin, cut: int) -> None:
    """Exactly so many bytes, then the end; the next GET is whole."""
    origin.put("a", 1_000_000, cut=[cut])
    assert to_end(raw(origin, "a")) == content.data("a", 1_000_000)[:cut]
    with answer(origin, "a") as r:
        assert len(r.read()) == 1_000_000


def test_cut_always(origin: Origin) -> None:
    """Every GET is cut."""
    origin.put("a", 1000, cut_always=10)
    assert [len(to_end(raw(origin, "a"))) for _ in range(3)] == [10, 10, 10]


def test_stall_and_leaving(origin: Origin) -> None:
    """Silent after so many bytes; who leaves then is counted as aborted."""
    shard = origin.put("a", 1000, stall=[100])
    with raw(origin, "a") as sock:
        sock.settimeout(0.3)
        got = bytearray()
        with pytest.raises(TimeoutError):
            drain(sock, got)
        assert shard.open == 1
    assert got.partition(b"\r\n\r\n")[2] == content.data("a", 100)
    until(lambda: shard.aborted == 1 and shard.open == 0, 5)


def test_gate(origin: Origin) -> None:
    """A body waits at the gate's offset until it is opened."""
    gate = Gate(300_000)
    shard = origin.put("a", 1_000_000, gate=gate)
    with raw(origin, "a") as sock:
        assert gate.reached.wait(5)
        assert (shard.sent, shard.open) == (300_000, 1)
        gate.open()
        with sock.makefile("rb") as file:
            while file.readline() != b"\r\n":
                pass
            assert file.read(1_000_000) == shard.whole()


def test_statuses(origin: Origin) -> None:
    """Listed answers come first, then the object; `always` never ends."""
    shard = origin.put("a", 10, statuses=[busy(3), Status(500), None])
    seen = []
    for _ in range(4):
        with answer(origin, "a") as r:
            seen.append((r.status, r.headers["Retry-After"]))
    assert seen == [(503, "3"), (500, None), (200, None), (200, None)]
    shard.always = Status(401)
    with answer(origin, "a", "HEAD") as r:
        assert r.status == 401


def test_head_lies(origin: Origin) -> None:
    """HEAD is refused, claims another length, or is never answered, while GET works."""
    shard = origin.put("a", 10, head=Status(405))
    with answer(origin, "a", "HEAD") as r:
        assert r.status == 405
    shard.head, shard.head_length = None, 0
    with answer(origin, "a", "HEAD") as r:
        assert r.headers["Content-Length"] == "0"
    shard.head = "hang"
    with closing(http.client.HTTPConnection("127.0.0.1", origin.port, timeout=0.3)) as connection:
        connection.request("HEAD", "/a")
        with pytest.raises(TimeoutError):
            connection.getresponse()
    with answer(origin, "a") as r:
        assert len(r.read()) == 10


def test_range_lies(origin: Origin) -> None:
    """Advertised and ignored; shifted by one; without Content-Range; not offered."""
    shard = origin.put("a", 1000)
    whole = shard.whole()
    expected: dict[Any, tuple[int, bytes, str | None]] = {
        "lie": (200, whole, None),
        "no": (200, whole, None),
        "shift": (206, whole[99:199], "bytes 99-198/1000"),
        "bare": (206, whole[100:200], None),
    }
    for how, (code, body, said) in expected.items():
        shard.ranges = how
        with answer(origin, "a", Range="bytes=100-199") as r:
            assert (how, r.status, r.read(), r.headers["Content-Range"]) == (how, code, body, said)


def test_framings(origin: Origin) -> None:
    """Chunked, chunked without its end, ended by the connection, another length than announced."""
    shard = origin.put("a", 200_000, framing="chunked")
    whole = shard.whole()
    with answer(origin, "a") as r:
        assert r.read() == whole
    shard.framing = "unfinished"
    with answer(origin, "a") as r, pytest.raises(http.client.IncompleteRead):
        r.read()
    shard.framing = "close"
    with answer(origin, "a") as r:
        assert (r.read(), r.headers["Content-Length"]) == (whole, None)
    shard.framing, shard.claim = "length", 200_001
    with answer(origin, "a") as r, pytest.raises(http.client.IncompleteRead):
        r.read()


def test_gzip_nobody_asked_for(origin: Origin) -> None:
    """The length is that of the packed form."""
    origin.put("a.tar", 10_000, gzip=True)
    with answer(origin, "a.tar", Accept_Encoding="identity") as r:
        packed = r.read()
        assert (r.headers["Content-Encoding"], r.headers["Content-Length"]) == ("gzip", str(len(packed)))
    assert gzip.decompress(packed) == content.data("a.tar", 10_000)


def test_reset_after_the_last_byte(origin: Origin) -> None:
    """Every byte comes, then ECONNRESET."""
    origin.put("a", 3 * MIB, ending="reset")
    got = bytearray()
    with raw(origin, "a") as sock, pytest.raises(ConnectionResetError):
        drain(sock, got)
    assert got.partition(b"\r\n\r\n")[2] == content.data("a", 3 * MIB)


def test_half_close(origin: Origin) -> None:
    """The end of the stream comes at once, the connection lasts until the client closes."""
    shard = origin.put("a", 3 * MIB, ending="half-close")
    sock = raw(origin, "a")
    with sock.makefile("rb") as file:
        assert len(file.read()) > 3 * MIB
    assert shard.open == 1
    sock.close()
    until(lambda: shard.open == 0, 5)


def test_drop_after_a_reply(origin: Origin) -> None:
    """The reply is whole and says nothing of a close; a request sent at once after it is never answered."""
    shard = origin.put("a", 10, ending="drop")
    with raw(origin, "a") as sock:
        got = sock.recv(65_536)
        while not got.endswith(shard.whole()):
            got += sock.recv(65_536)
        assert b"Connection: close" not in got
        more = bytearray()
        with suppress(ConnectionError):
            sock.sendall(b"GET /a HTTP/1.1\r\n\r\n")
            drain(sock, more)
        assert (bytes(more), shard.gets) == (b"", 1)


@pytest.mark.parametrize("splice", [False, True])
def test_change_in_mid_transfer(origin: Origin, *, splice: bool) -> None:
    """At an offset the object becomes another; the running transfer keeps its version, or goes on with the new one."""
    shard = origin.put("a", 200_000, change=(100_000, lambda o: o.replace(seed=9)), splice=splice)
    old, new, tag = shard.whole(), content.data("a", 200_000, 9), shard.tag
    with answer(origin, "a") as r:
        assert r.headers["ETag"] == tag
        assert r.read() == (old[:100_000] + new[100_000:] if splice else old)
    with answer(origin, "a") as r:
        assert r.headers["ETag"] != tag
        assert r.read() == new


def test_redirect(origin: Origin) -> None:
    """302 with its Location."""
    origin.put("a", redirect=origin.at("b"))
    with answer(origin, "a") as r:
        assert (r.status, r.headers["Location"]) == (302, origin.url + "b")


def test_bandwidth() -> None:
    """Link and transfer limits hold: 200 kB take at least as long as they must."""
    with Origin(link_bps=1_000_000) as origin:
        origin.put("a", 200_000)
        with answer(origin, "a") as r:
            r.read()
        began, ended = origin.log[0].at, time.monotonic()
        assert 0.12 < ended - began < 5
        origin.limit(None)
        origin["a"].bps = 1_000_000
        with answer(origin, "a") as r:
            r.read()
        assert time.monotonic() - ended > 0.12


def test_down_and_up(origin: Origin) -> None:
    """Refused while down; running transfers break; the same port afterwards."""
    origin.put("a", 1000, stall=[10])
    with raw(origin, "a") as sock:
        sock.recv(1)
        origin.down()
        with pytest.raises(ConnectionRefusedError):
            raw(origin, "a")
        assert len(to_end(sock)) <= 10
    origin.up()
    with answer(origin, "a") as r:
        assert len(r.read()) == 1000


def test_freeze(origin: Origin) -> None:
    """Accepted, silent, and answered after the thaw."""
    origin.put("a", 1000)
    origin.freeze()
    with raw(origin, "a") as sock:
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        origin.thaw()
        sock.settimeout(5)
        assert sock.recv(1) == b"H"


def test_black_hole(origin: Origin) -> None:
    """Connecting hangs; afterwards it works again."""
    origin.put("a", 10)
    origin.black_hole()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", origin.port), 0.3)
    origin.up()
    with answer(origin, "a") as r:
        assert len(r.read()) == 10


def test_process_form() -> None:
    """Objects, counts and SIGSTOP of the origin as a process."""
    with OriginProcess(objects=3, size=1000) as origin:
        with closing(http.client.HTTPConnection("127.0.0.1", origin.port, timeout=5)) as connection:
            connection.request("GET", "/" + shard_name(2))
            assert connection.getresponse().read() == content.data(shard_name(2), 1000)
        assert {"gets": 1, "sent": 1000, "most": 1}.items() <= origin.stats().items()
        origin.freeze()
        with closing(http.client.HTTPConnection("127.0.0.1", origin.port, timeout=0.2)) as connection:
            connection.request("GET", "/" + shard_name(0))
            with pytest.raises(TimeoutError):
                connection.getresponse()
        origin.thaw()
        assert origin.stats()["gets"] >= 1


# -- disk and mounts


def _cache(home: Path) -> Path:
    for area in ("shards/s", "meta/s", "members/s", "staging", "trash", "suspect"):
        (home / area).mkdir(parents=True)
    return home


def test_usage_counts_each_inode_once(tmp_path: Path) -> None:
    """Hard links once, areas together, other folders not."""
    cache = _cache(tmp_path)
    content.write(cache / "shards/s/a", "a", 10_000)
    os.link(cache / "shards/s/a", cache / "staging/a")
    content.write(cache / "trash/b", "b", 5000)
    content.write(cache / "meta/s/a.json", "c", 5000)
    assert disk.usage(cache) == 12_288 + 8192
    assert disk.published(cache) == ["s/a"]
    assert disk.leftovers(cache) == ["staging/a", "trash/b"]


def test_strays(tmp_path: Path) -> None:
    """A shard without meta, a meta or table without shard; versions share the meta of their name."""
    cache = _cache(tmp_path)
    for path in ("shards/s/a", "meta/s/a.json", "shards/s/v@01234567", "meta/s/v.json", "meta/s/.source"):
        (cache / path).touch()
    assert disk.strays(cache) == []
    for path in ("shards/s/b", "meta/s/c.json", "members/s/d"):
        (cache / path).touch()
    assert disk.strays(cache) == [
        "member table without shard: s/d",
        "meta without shard: s/c",
        "shard without meta: s/b",
    ]


def test_sampler_keeps_the_most(tmp_path: Path) -> None:
    """What was there between two looks' beginnings and ends is kept."""
    cache = _cache(tmp_path)
    with disk.Sampler(cache, step=0.001) as sampler:
        for name in "abc":
            content.write(cache / "shards/s" / name, name, 4096)
        until(lambda: sampler.most.shards == 3, 5)
        for name in "abc":
            (cache / "shards/s" / name).unlink()
    assert sampler.most == disk.Look(3, 3 * 4096)


def test_sampler_looks_at_growing_files(tmp_path: Path) -> None:
    """A transfer under way does not hide the tree."""
    cache = _cache(tmp_path)
    with (cache / "staging/a").open("ab", buffering=0) as file, disk.Sampler(cache, step=0.001) as sampler:

        def grown() -> bool:
            file.write(bytes(4096))
            return sampler.looks >= 3

        until(grown, 5)
    assert sampler.most.bytes >= 4096


def test_other_boot(tmp_path: Path) -> None:
    """Only the boot id changes, whatever its key, and a file without one is refused."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "daemon.json").write_text(f'{{"boot": "{boot}", "format": 1}}')
    disk.other_boot(tmp_path)
    text = (tmp_path / "daemon.json").read_text()
    assert boot not in text
    assert '"format": 1' in text
    with pytest.raises(AssertionError):
        disk.other_boot(tmp_path)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_cut(kind: str) -> None:
    """What was synced survives the cut, what was not is lost or empty."""
    with loop_fs(kind, 32 * MIB) as fs:
        kept, lost = fs.path / "kept", fs.path / "lost"
        kept.write_bytes(b"k" * 5000)
        descriptor = os.open(kept, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        lost.write_bytes(b"l" * 5000)
        fs.power_cut()
        with pytest.raises(OSError, match="Input/output"):
            (fs.path / "more").write_bytes(b"x")
        fs.remount()
        assert kept.read_bytes() == b"k" * 5000
        assert not lost.exists() or lost.read_bytes() != b"l" * 5000


def test_small_tmpfs() -> None:
    """Bytes and inodes run out."""
    with small_tmpfs(64 << 10, 4) as path:
        with pytest.raises(OSError, match="No space"):
            (path / "a").write_bytes(bytes(128 << 10))
        (path / "a").write_bytes(b"")
        (path / "b").touch()
        (path / "c").touch()
        with pytest.raises(OSError, match="No space"):
            (path / "d").touch()


def test_fuse(tmp_path: Path) -> None:
    """Passes all on with the folder's own inodes and locks; errors and hangs come as asked."""
    with fuse_fs(tmp_path) as mount:
        path = mount.path / "a"
        content.write(path, "a", 300_000)
        assert content.matches(tmp_path / "a", "a", 300_000)
        assert path.stat().st_ino == (tmp_path / "a").stat().st_ino
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
        assert (tmp_path / "a").stat().st_mtime_ns == 1_700_000_000_123_456_789
        path.rename(mount.path / "b")
        path = mount.path / "b"
        with path.open("rb") as first, path.open("rb") as second:
            fcntl.flock(first, fcntl.LOCK_SH)
            with pytest.raises(BlockingIOError):
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mount.turn(errno="ESTALE", ops=["read"], nth=2)
        with path.open("rb", buffering=0) as file:
            assert len(file.read(10)) == 10
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                file.read(10)
            assert len(file.read(10)) == 10
        mount.turn(errno="EIO", ops=["read"])
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            path.read_bytes()
        mount.turn()


def test_fuse_hangs(tmp_path: Path) -> None:
    """Fifty hung reads leave other calls alone, and go on once the knob is turned back."""
    content.write(tmp_path / "a", "a", 100)
    with fuse_fs(tmp_path) as mount:
        mount.turn(hang=True, ops=["read"])
        with ThreadPoolExecutor(50) as threads:
            reads = [threads.submit((mount.path / "a").read_bytes) for _ in range(50)]
            assert wait(reads, 0.3).done == set()
            assert (mount.path / "a").stat().st_size == 100
            assert mount.turn()["read"] >= 50
            assert {read.result(10) for read in reads} == {content.data("a", 100)}


# -- processes

STAND_IN = """
import http.server, json, os, socketserver, subprocess, sys, tomllib
from pathlib import Path
said = tomllib.loads(Path(sys.argv[3]).read_text())
print("serving", sorted(said["sources"]), flush=True)
if said["cache"].get("helper"):
    subprocess.Popen(["sleep", "60"])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        cache = {"shards": 0, "bytes": said["cache"].get("lie", 0)}
        body = b"x_total{a=\\"1\\"} 2\\n" if self.path == "/metrics" else json.dumps({"cache": cache}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if self.path == "/metrics" else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self): return "unix"
    def log_message(self, *_): pass
class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
path = said["server"]["socket"]
Path(path).unlink(missing_ok=True)
Server(path, Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> list[str]:
    """A command that answers `hello` and `status`, to test the harness itself."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    return [sys.executable, str(script)]


def test_daemon_harness(stand_in: list[str]) -> None:
    """Starts, answers, freezes, restarts and stops; nothing is left."""
    with Daemon({"s": "http://127.0.0.1:1/"}, command=stand_in) as daemon:
        assert daemon.status()["cache"]["shards"] == 0
        assert daemon.metrics() == {("x_total", frozenset({("a", "1")})): 2.0}
        assert "serving ['s']" in daemon.log
        daemon.audit()
        daemon.freeze()
        with pytest.raises(TimeoutError):
            daemon.api("GET", "/v1/hello", timeout=0.2)
        daemon.thaw()
        first = daemon.pid
        daemon.restart()
        assert daemon.pid != first
        assert daemon.stop() == -15
        daemon.audit()
        daemon.start()
    assert not daemon.home.exists()


def test_daemon_is_audited_at_the_end(stand_in: list[str]) -> None:
    """A block that ends well fails when a helper outlives the daemon; nothing is left all the same."""
    with (
        pytest.raises(AssertionError, match="the end of helpers"),
        Daemon({"s": "http://127.0.0.1:1/"}, command=stand_in, helper=True) as daemon,
    ):
        assert daemon.alive
    assert daemon.children() == []
    assert not daemon.home.exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_daemon_of_another_user() -> None:
    """Runs as an ordinary user who can make the cache directory and the socket."""
    command = ["sh", "-c", "id -u; mkdir cache; exit 5"]
    with Daemon({}, command=command, popen={"user": 65534, "group": 65534}, begin=False) as daemon:
        assert daemon.fails() == (5, "", "65534\n")
        assert daemon.cache.stat().st_uid == 65534


def test_daemon_audit_sees_leftovers_and_lies(stand_in: list[str]) -> None:
    """Files in staging, a wrong count, a helper that outlives the daemon."""
    with Daemon({"s": "http://127.0.0.1:1/"}, command=stand_in, check=False, lie=7, helper=True) as daemon:
        _cache(daemon.cache)
        (daemon.cache / "staging/x").touch()
        with pytest.raises(AssertionError, match=r"left behind: staging/x\nstatus says 7 bytes, the disk 0"):
            daemon.audit(0)
        helpers = daemon.children()
        assert len(helpers) == 1
        daemon.kill9()
        assert daemon.children() == helpers
        with pytest.raises(AssertionError, match="a helper outlived the daemon"):
            daemon.audit(0)
    assert daemon.children() == []


def test_daemon_that_does_not_start() -> None:
    """Its end is reported with what it said."""
    with Daemon({}, command=["sh", "-c", "echo because >&2; exit 4"], begin=False) as daemon:
        with pytest.raises(AssertionError, match=r"(?s)ended with 4.*because"):
            daemon.start()
        assert daemon.fails()[::2] == (4, "because\n")


def test_toml_is_read_back() -> None:
    """Tables, sub-tables, inline tables, strings with anything in them."""
    tables = {
        "cache": {"max_shards": 5, "grace": 0.5, "unpack_limits": {"members": 3}, "dir": 'a "b"\\é\n'},
        "sources": {"a.b": {"url": "http://x/", "headers": {"X-A": "env:B"}, "list": [1, True]}},
    }
    assert tomllib.loads(toml.dumps(tables)) == tables


def test_samples() -> None:
    """Names, labels with escapes, values; a line that is none is refused."""
    text = '# HELP x\nx_total{a="q\\"\\n\\\\",b="2"} 3.5\ny 1e3\n'
    assert samples(text) == {("x_total", frozenset({("a", 'q"\n\\'), ("b", "2")})): 3.5, ("y", frozenset()): 1000.0}
    with pytest.raises(ValueError, match="no sample"):
        samples("x_total")


def test_readers_talk_and_end() -> None:
    """Lines both ways, statuses, children that outlive their parent."""
    assert run_all(None, "say(ARG * 2)", [1, 2, 3], prelude=True) == [[2], [4], [6]]
    with Reader(None, "import subprocess\nsay(subprocess.Popen(['sleep', '60']).pid)\nsay(hear())\nhear()") as reader:
        child = reader.line()
        reader.tell({"a": 1})
        assert reader.line() == {"a": 1}
        reader.freeze()
        reader.tell()
        assert reader.wait(0.2) is None
        reader.kill9()
        assert reader.children() == [child]
    with Reader(None, "sys.exit('no')") as reader, pytest.raises(AssertionError, match="ended with 1: no"):
        reader.rest()
