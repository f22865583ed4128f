"""A body that comes in very many small pieces: writev(2) takes 1024 at once, and a MiB may have more."""

from __future__ import annotations

import contextlib
import http.server
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cachedaemon.store.disk import DIGEST
from cachedaemon.store.staged import Staged
from tests.fakes import content
from tests.fakes.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE, PIECE = 2 << 20, 200


class Crumbs(http.server.BaseHTTPRequestHandler):
    """Any object in chunks of `PIECE` bytes (RFC 9112, 7.1)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = content.data("k", SIZE)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, SIZE, PIECE):
            piece = body[start : start + PIECE]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def crumbs() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Crumbs) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_shard_in_crumbs_arrives(crumbs: str) -> None:
    with Daemon({"s": crumbs}) as daemon:
        assert content.matches(daemon.path("s", "k.bin"), "k", SIZE)


@pytest.mark.parametrize("pieces", [0, 1, 1023, 1024, 1025, 5000])
def test_any_number_of_pieces_is_written(folder: Path, pieces: int) -> None:
    body = content.data("k", pieces * 7)
    with contextlib.closing(Staged(str(folder / "1"), 1)) as staged:
        staged.write([body[start : start + 7] for start in range(0, len(body), 7)])
        assert (staged.size, staged.digest) == (len(body), DIGEST + content.xxh3("k", len(body)))
        assert Path(staged.path).read_bytes() == body
