"""The process that reads one video with yt-dlp: `python -m cachedaemon.foreign.videos PARENT`.

A request has the `page` to open, and `insecure`, `proxy` and `timeout` (seconds, or null). It answers true for each answer
that a site gives on the way, and the state of the video's file, then `read 0 STOP` pours that into the pipe and answers the same state. A process serves one request.

yt-dlp finds the file; the bytes are read here, from one answer or from parts of one file, so that nothing is written to
a disk. Of yt-dlp's own files, plugins and settings none is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

sys.modules["curl_cffi"] = None  # type: ignore[assignment]  # its connections would not be seen by the guard
os.environ["YTDLP_NO_PLUGINS"] = "1"

from yt_dlp import YoutubeDL  # type: ignore[import-untyped]  # noqa: E402 - see above
from yt_dlp.extractor import gen_extractor_classes  # type: ignore[import-untyped]  # noqa: E402
from yt_dlp.networking import Request, Response  # type: ignore[import-untyped]  # noqa: E402

from cachedaemon.foreign.guard import Guard  # noqa: E402
from cachedaemon.foreign.process import Conversation, Failure, run  # noqa: E402
from cachedaemon.foreign.refusals import failed  # noqa: E402

FORMATS = (
    "b[protocol=https]/b[protocol=http]/bv*[protocol=https]/bv*[protocol=http]/ba[protocol=https]/ba[protocol=http]"
)
"""One file with picture and sound, else with one of the two; none that comes in fragments."""
STEP = 128 << 10
"""Bytes of one read."""


class Quiet:
    """What yt-dlp logs may hold addresses that are signed, and goes nowhere."""

    def debug(self, said: str) -> None:
        """Not logged."""

    warning = error = debug


def options(said: dict[str, Any]) -> dict[str, Any]:
    """What yt-dlp is made with. Tries are the daemon's."""
    return {
        "format": FORMATS,
        "logger": Quiet(),
        "noprogress": True,
        "noplaylist": True,
        "cachedir": False,
        "extractor_retries": 0,
        "default_search": "error",
        "nocheckcertificate": said["insecure"],
        "proxy": said["proxy"] or "",
        "socket_timeout": said["timeout"],
    }


class Finder(YoutubeDL):  # type: ignore[misc]
    """yt-dlp, telling of each answer that it gets on the way to a file."""

    def __init__(self, params: dict[str, Any], tell: Callable[[], None]) -> None:
        super().__init__(params)
        self._tell = tell

    def urlopen(self, req: Any) -> Response:
        """For yt-dlp itself."""
        answer = self.fetch(req)
        self._tell()
        return answer

    def fetch(self, req: Any) -> Response:
        """For the file."""
        return super().urlopen(req)


class Video:
    """The file that was chosen for a page, opened."""

    def __init__(self, finder: Finder, info: dict[str, Any]) -> None:
        self._finder = finder
        self._url: str = info["url"]
        self._headers: dict[str, str] = {**(info.get("http_headers") or {}), "Accept-Encoding": "identity"}
        self._step: int | None = (info.get("downloader_options") or {}).get("http_chunk_size")
        self._answer = self._ask(0)
        self.state = _state(self._answer)

    def _ask(self, start: int) -> Response:
        """The file from a byte on; a part of it where the site slows down whoever asks for more."""
        wanted = {"Range": f"bytes={start}-{start + self._step - 1}"} if self._step else {}
        return self._finder.fetch(Request(self._url, headers=self._headers | wanted))

    def pieces(self) -> Iterator[bytes]:
        """All of the file."""
        at = 0
        while True:
            while piece := self._answer.read(STEP):
                at += len(piece)
                yield piece
            if self._answer.status != 206 or at >= (self.state["size"] or 0):
                return
            self._answer = self._ask(at)
            if _state(self._answer) != self.state or _start(self._answer) != at:
                raise Failure("Changed", "the video's file changed while it was read")


def _state(answer: Response) -> dict[str, Any]:
    """Size of the whole file, and its validators."""
    head = answer.headers
    total = (head.get("Content-Range") or "").rpartition("/")[2] if answer.status == 206 else head.get("Content-Length")
    is_plain = head.get("Content-Encoding", "identity") == "identity"  # else the length is that of another form
    size = int(total) if is_plain and total and total.isdigit() else None
    return {"size": size, "etag": head.get("ETag"), "version": None, "modified": head.get("Last-Modified")}


def _start(answer: Response) -> int:
    """The first byte of a part (RFC 9110, 14.4), -1 for what is none."""
    first = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def chosen(finder: Finder, page: str) -> dict[str, Any]:
    """What yt-dlp knows of the one video of a page, with the format that was chosen."""
    info: dict[str, Any] = finder.extract_info(page, download=False)
    if info.get("_type", "video") != "video":
        raise Failure("OriginRefused", "the page is a list of videos: allowed is one")
    if info.get("is_live"):
        raise Failure("OriginRefused", "the video is live: allowed is one that has ended")
    if "url" not in info:
        raise Failure("OriginRefused", "the video does not come as one file")
    return info


def answer(asked: Conversation) -> None:
    """One video."""
    guard = Guard(asked.said["page"], asked.said["proxy"])
    sys.addaudithook(guard)
    with Finder(options(asked.said), lambda: asked.say(True)) as finder:
        video = _mapped(lambda: Video(finder, chosen(finder, asked.said["page"])), guard)
        asked.say(video.state)
        for _ in asked.lines():
            pieces = video.pieces()
            while piece := _mapped(lambda: next(pieces, b""), guard):  # noqa: B023 - called at once
                asked.write(piece)
            asked.end()
            asked.say(video.state)


def _mapped(call: Callable[[], Any], guard: Guard) -> Any:
    try:
        return call()
    except Failure:
        raise
    except Exception as cause:
        raise failed(cause, guard.refused) from cause


def warm() -> None:
    """Have the patterns of all sites compiled: it takes a second, which is none of the first site's."""
    for site in gen_extractor_classes():
        site.suitable("https://video.invalid/")


if __name__ == "__main__":
    warm()
    run(answer)
