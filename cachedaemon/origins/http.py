"""Any web server (RFC 9110). The object is what the server calls the identity form: content codings are taken off.

No probe comes first: a GET says all that a HEAD can, and servers lie in a HEAD more often.
"""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from urllib.parse import quote, unquote, urljoin, urlsplit

import aiohttp
from yarl import URL

from cachedaemon.config import Fetch, Source
from cachedaemon.errors import (
    BadRequest,
    CacheDaemonError,
    ConfigError,
    Cut,
    Missing,
    NoParts,
    OriginRefused,
    OriginUnavailable,
)
from cachedaemon.metrics import Metrics
from cachedaemon.model import Digest, Ref, Validators
from cachedaemon.origins import coding
from cachedaemon.origins.base import KEY, PIECE, Piece, is_still, refuse_dots
from cachedaemon.origins.resolve import Resolver

REDIRECTS = 10
AGENT = "cachedaemon"
_SEGMENT = "/!$&'()*+,;=:@-._~"
"""What a key keeps of itself: everything a path may carry (RFC 3986, pchar and the slash)."""
_IN_A_QUERY = "/!$'()*,:@-._~"
"""Of these, what a query may carry where it is a list of names and values."""
_MISSING = frozenset({404, 410})
_UNAVAILABLE = frozenset({408, 409, 421, 423, 425, 429})
_MOVED = frozenset({301, 302, 303, 307, 308})
LONGEST_WAIT = 300.0
"""Seconds that a `Retry-After` is followed at the most."""
BELIEVABLE = 86400.0
"""Seconds; a `Retry-After` beyond a day is taken for nonsense."""
LONGEST_BATCH = 0.25
"""Seconds that bytes which came are kept back for more."""
SMALL_PIECE = 4096
"""Bytes; what came in smaller pieces is joined."""
THREADS = 4
"""Name look-ups and secrets of one source that are read at once."""
_PORTS = {"http": 80, "https": 443}


class HttpOrigin:
    """Objects under a URL prefix."""

    def __init__(self, name: str, source: Source, fetch: Fetch, metrics: Metrics) -> None:
        self._name = name
        self._url, self._user = _without_user(source.url)
        self._headers = source.headers
        self._proxy = source.proxy
        self._source = source
        patience, stall = fetch.connect_timeout or None, fetch.stall_timeout or None
        self._patience, self._stall = patience, stall
        self._head_limit = patience + stall if patience and stall else None
        self._timeout = aiohttp.ClientTimeout(total=None, connect=patience, sock_connect=patience, sock_read=stall)
        self._threads = ThreadPoolExecutor(THREADS, f"origin-{name}")
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None

    async def look(self) -> None:
        """A server is asked for objects only."""

    def check_key(self, key: str) -> None:
        """No key climbs out of the URL's path."""
        refuse_dots(self._name, key)

    @asynccontextmanager
    async def open(self, key: str, known: Validators | None = None) -> AsyncIterator[HttpStream | None]:
        """A GET of the key's URL."""
        ref = Ref(self._name, key)
        try:
            response = await self._get(ref, self._target(key))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as cause:
            raise _unreachable(cause, ref) from cause
        try:
            with _connected(response):
                stream = HttpStream(ref, response, self._stall)
                yield None if is_still(known, stream.validators) else stream
        finally:
            response.close() if not response.content.at_eof() else response.release()

    def _target(self, key: str) -> str:
        before, found, after = self._url.partition(KEY)
        return before + quote(key, safe=_IN_A_QUERY if found and "?" in before else _SEGMENT) + after

    async def _get(self, ref: Ref, url: str) -> aiohttp.ClientResponse:
        """The answer with the object, after redirects; no configured header goes to another host."""
        headers, first = await self._own_headers(ref), url
        for _ in range(REDIRECTS + 1):
            response = await self._ask(url, headers if _is_same_site(first, url) else {})
            location = response.headers.get("Location")
            if response.status not in _MOVED or location is None:
                return _checked(ref, response)
            response.close()
            url = urljoin(url, location)
        raise OriginRefused(f"{ref}: the origin redirects over {REDIRECTS} times")

    async def _ask(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """An answer's head. It has a limit as a whole: a server may go on with interim answers, or a line at a time."""
        session = self._session or await self._begin()
        status = "failed"
        try:
            async with asyncio.timeout(self._head_limit):
                response = await session.get(
                    URL(url, encoded=True), headers=headers, allow_redirects=False, proxy=self._proxy
                )
            status = str(response.status)
        finally:
            self._metrics.origin_requests.labels(self._name, status).inc()
        return response

    async def _own_headers(self, ref: Ref) -> dict[str, str]:
        """Configured headers; a secret's file is read in a thread, since its mount can hang like any other."""
        if not self._headers:
            return dict(self._user)
        read = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: {name: secret.value() for name, secret in self._headers.items()}
        )
        try:
            async with asyncio.timeout(self._patience):
                return {**self._user, **await read}
        except TimeoutError:
            raise OriginUnavailable(f"{ref}: the file of a configured header cannot be read in time") from None
        except ConfigError as cause:
            raise OriginUnavailable(f"{ref}: a configured header cannot be sent: {cause}") from None

    async def _begin(self) -> aiohttp.ClientSession:
        """The session that all requests share; certificates are read in a thread, like everything from a disk."""
        tls = await asyncio.get_running_loop().run_in_executor(self._threads, _tls, self._source)
        self._session = self._session or self._open_session(tls=tls)
        return self._session

    def _open_session(self, *, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, resolver=Resolver(self._threads), ssl=tls),
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": AGENT, "Accept-Encoding": "identity"},
            read_bufsize=PIECE,
            requote_redirect_url=False,
        )

    async def keys(self) -> list[str]:
        """A web server has no list of its objects."""
        raise BadRequest(f"{self._name}: an http source cannot list its keys; name them")

    async def close(self) -> None:
        """Close the connections; a thread that hangs is left alone."""
        if self._session is not None:
            await self._session.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """A URL without user and password, and the header that they stand for: it must not follow a redirect elsewhere."""
    parts = urlsplit(url)
    user, found, place = parts.netloc.rpartition("@")
    if not found:
        return url, {}
    name, _, word = user.partition(":")
    token = b64encode(f"{unquote(name)}:{unquote(word)}".encode()).decode()
    return url.replace(parts.netloc, place, 1), {"Authorization": f"Basic {token}"}


def _is_same_site(first: str, second: str) -> bool:
    """Whether two URLs are of one host and port; TLS may come in, never go."""
    one, other = (
        (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme))
        for parts in (urlsplit(first), urlsplit(second))
    )
    return one == other or (one == ("http", one[1], 80) and other == ("https", one[1], 443))


def _tls(source: Source) -> ssl.SSLContext | bool:
    if source.insecure:
        return False
    return ssl.create_default_context(cafile=str(source.ca)) if source.ca else True


def _unreachable(cause: Exception, ref: Ref) -> CacheDaemonError:
    """A request that got no answer."""
    if isinstance(cause, CacheDaemonError):
        return cause
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        return OriginRefused(f"{ref}: the origin's certificate is not trusted: {cause.certificate_error}")
    if isinstance(cause, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
        return OriginRefused(f"{ref}: the URL cannot be requested ({type(cause).__name__})")
    return OriginUnavailable(f"{ref}: {_said(cause)}")


def _said(cause: Exception) -> str:
    """What happened, without the URL, which may be signed."""
    if isinstance(cause, aiohttp.ServerTimeoutError | TimeoutError):
        return "the origin does not answer in time"
    if isinstance(cause, aiohttp.ServerDisconnectedError):
        return "the origin closed the connection without an answer"
    if isinstance(cause, aiohttp.ClientConnectorError):
        return f"the origin cannot be reached: {cause.os_error.strerror or 'no connection'}"
    if isinstance(cause, aiohttp.ClientPayloadError):
        return "the connection ended within the body, or the body is malformed"
    return f"the connection to the origin failed ({type(cause).__name__})"


def _checked(ref: Ref, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    if response.status == 200:
        return response
    response.close()
    raise _refusal(ref, response.status, response.headers)


def _refusal(ref: Ref, status: int, headers: Mapping[str, str]) -> CacheDaemonError:
    said = f"{ref}: the origin answered {status}"
    if status in _MISSING:
        return Missing(said)
    if status >= 500 or status in _UNAVAILABLE or status < 400:
        return OriginUnavailable(said, retry_after=retry_after(headers.get("Retry-After")))
    return OriginRefused(said)


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` asks for (RFC 9110, 10.2.3): a number or a date; None for what cannot be meant."""
    if value is None:
        return None
    value = value.strip()
    try:
        if value.isascii() and value.isdigit():
            asked = float(value)
        else:
            asked = max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
    return min(asked, LONGEST_WAIT) if asked <= BELIEVABLE else None


@contextmanager
def _connected(response: aiohttp.ClientResponse) -> Iterator[None]:
    """While a body is read, its connection's end ends it too.

    The parser closes the connection on a malformed chunk, and with it go its time limits, without a word to who reads.
    """
    content = response.content

    def end(_: object = None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError())

    if response.connection is None or response.connection.protocol is None:  # the body was complete with the head
        yield
        return
    closed = response.connection.protocol.closed
    if closed is None:
        end()
        yield
        return
    closed.remove_done_callback(_note)
    closed.add_done_callback(_note)
    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)


def _note(closed: asyncio.Future[None]) -> None:
    """How a connection that is kept for later ends is of no interest."""
    if not closed.cancelled():
        closed.exception()


class HttpStream:
    """The body of one answer. `stall` are the seconds that its bytes may be waited for, None for no limit."""

    def __init__(self, ref: Ref, response: aiohttp.ClientResponse, stall: float | None) -> None:
        self._ref = ref
        self._response = response
        self._stall = stall
        self._coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if self._decoded and self._coding not in coding.KNOWN:
            raise OriginRefused(f"{ref}: the origin sends the content coding {self._coding!r}, which nobody asked for")
        framing = _transfer_codings(response)
        if framing not in ([], ["chunked"]):
            said = ", ".join(framing)
            raise OriginRefused(f"{ref}: the origin sends the transfer coding {said!r}, which nobody asked for")
        # What comes in chunks has no other length, whatever else the head says (RFC 9112, 6.3).
        self._length = None if "Transfer-Encoding" in response.headers else response.content_length
        self.size = None if self._decoded else self._length
        etag = response.headers.get("ETag")
        self.validators = Validators(etag=etag, modified=response.headers.get("Last-Modified"))
        self.digests: tuple[Digest, ...] = ()
        self.has_parts = False

    def part(self, start: int, stop: int) -> AbstractAsyncContextManager[AsyncIterator[list[Piece]]]:
        """Not given."""
        raise NoParts(f"{self._ref}: no parts: {start} to {stop}")

    @property
    def _decoded(self) -> bool:
        return self._coding not in ("", "identity")

    def pieces(self) -> AsyncIterator[list[Piece]]:
        """The object's bytes."""
        return self._plain() if self._decoded else self._batches()

    async def _plain(self) -> AsyncIterator[list[Piece]]:
        try:
            async for batch in coding.decoded(self._coding, self._ref.key, self._batches()):
                yield batch
        except coding.Damaged as cause:
            raise Cut(f"{self._ref}: the {self._coding} coding of the body {cause}") from cause

    async def _batches(self) -> AsyncIterator[list[Piece]]:
        """About a MiB at a time, in the pieces that it came in: to join them took a tenth of all CPU (bench/fill.py).

        From a slow origin less, so that a transfer shows how far it is.
        """
        content = self._response.content
        try:
            while batch := await self._batch(content):
                yield batch
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise self._cut(cause, content.total_bytes) from cause
        if self._length is not None and content.total_bytes != self._length:
            raise Cut(f"{self._ref}: got {content.total_bytes} of {self._length} bytes")

    async def _batch(self, content: aiohttp.StreamReader) -> list[Piece]:
        """The next bytes; none at the end. Only the object's bytes count against a stall, not what stands between them."""
        now = asyncio.get_running_loop().time
        batch: list[Piece] = []
        size, began = 0, now()
        async with asyncio.timeout(self._stall and self._stall + LONGEST_BATCH):
            while not size or (size < PIECE and now() - began <= LONGEST_BATCH):
                piece, is_end_of_chunk = await content.readchunk()
                if len(piece) < SMALL_PIECE:
                    piece += content.read_nowait()
                if piece:
                    batch.append(piece)
                    size += len(piece)
                elif not is_end_of_chunk:
                    break
        return batch

    def _cut(self, cause: Exception, total: int) -> Cut:
        expected = "an unknown number of" if self._length is None else self._length
        return Cut(f"{self._ref}: got {total} of {expected} bytes: {_said(cause)}")


def _transfer_codings(response: aiohttp.ClientResponse) -> list[str]:
    """What the body was coded with on its way (RFC 9112, 6.1), in that order; `identity` is the old word for nothing."""
    said = ",".join(response.headers.getall("Transfer-Encoding", [])).lower().split(",")
    return [one for word in said if (one := word.strip()) not in ("", "identity")]
