"""A file of keys and whole URLs, as a table that takes little memory: pre-signed URLs are long, and there may be a million.

Either a JSON object `{"KEY": "URL", ...}`, or lines of a key, a TAB or spaces, and a URL; empty lines and those that begin
with `#` say nothing. UTF-8. Of a key that stands in it several times the last URL counts.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

BLOCK = 1 << 16
"""Characters that are compressed together, about, and looked through for a key."""
_BLOCKS = 24
"""Bits for the number of a block."""
_HASH = (1 << (64 - _BLOCKS)) - 1


class Malformed(Exception):
    """The file is no such table; says where, and what is allowed; shows no URL."""


class UrlTable:
    """Keys and URLs, in compressed blocks. `index`: hashes of keys with the number of their block, in order."""

    def __init__(self, blocks: list[bytes], index: array[int]) -> None:
        self._blocks = blocks
        self._index = index

    def get(self, key: str) -> str | None:
        """The URL of a key, the last one."""
        wanted = hash(key) & _HASH
        at = bisect_left(self._index, (wanted + 1) << _BLOCKS) - 1
        while at >= 0 and self._index[at] >> _BLOCKS == wanted:
            block = dict(self._entries(self._index[at] & ((1 << _BLOCKS) - 1)))
            if key in block:
                return block[key]
            at -= 1
        return None

    def keys(self) -> set[str]:
        """All keys."""
        return {key for number in range(len(self._blocks)) for key, _ in self._entries(number)}

    def _entries(self, number: int) -> Iterator[tuple[str, str]]:
        for entry in zstandard.decompress(self._blocks[number]).decode().split("\0"):
            url, _, key = entry.partition(" ")
            yield key, url


def table_of(file: Path) -> UrlTable:
    """The file's table. Reads the disk: call it in a thread. Raises OSError, `Malformed`."""
    try:
        table = _packed(_entries(file))
    except UnicodeError:
        msg = "it is no UTF-8"
        raise Malformed(msg) from None
    if table is None:
        msg = "there is no key in it"
        raise Malformed(msg)
    return table


def _packed(entries: Iterable[tuple[str, str]]) -> UrlTable | None:
    """A table of these; None for nothing."""
    compress = zstandard.ZstdCompressor().compress
    blocks, index = [], []
    for number, block in enumerate(_blocks(entries)):
        blocks.append(compress("\0".join(f"{url} {key}" for key, url in block).encode()))
        index += [(hash(key) & _HASH) << _BLOCKS | number for key, _ in block]
    index.sort()
    return UrlTable(blocks, array("Q", index)) if index else None


def _blocks(entries: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    block, size = [], 0
    for entry in entries:
        block.append(entry)
        size += len(entry[0]) + len(entry[1])
        if size > BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _entries(file: Path) -> Iterator[tuple[str, str]]:
    with file.open(encoding="utf-8-sig", newline="\n") as text:
        begin = text.read(4096)
        text.seek(0)
        yield from _of_json(text.read()) if begin.lstrip().startswith("{") else _of_lines(text)


def _of_json(text: str) -> Iterator[tuple[str, str]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        pairs = None
    for key, url in pairs or ():
        if not isinstance(url, str) or not _is_entry(key, url):
            msg = f"the key {key!r}: allowed are JSON text and an http or https URL in printable ASCII"
            raise Malformed(msg)
        yield key, url
    if pairs is None:
        msg = 'it begins as JSON and is none: allowed is {"KEY": "URL", ...}, or lines'
        raise Malformed(msg)


def _of_lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, whole in enumerate(lines, 1):
        line = whole.rstrip()
        if not line or line.startswith("#"):
            continue
        key, url = _split(line)
        if not _is_entry(key, url):
            msg = f"line {number}: allowed are a key, a TAB or spaces, and an http or https URL in printable ASCII"
            raise Malformed(msg)
        yield key, url


def _split(line: str) -> tuple[str, str]:
    """At the last TAB, else at the last spaces: a key may have both, a URL neither."""
    before, tab, after = line.rpartition("\t")
    if tab:
        return before.rstrip("\t"), after.strip()
    key, url = (*line.rsplit(None, 1), "")[:2]
    return key, url


def _is_entry(key: str, url: str) -> bool:
    return (
        key != ""
        and "\0" not in key
        and url[:8].lower().startswith(("http://", "https://"))
        and url.isascii()
        and url.isprintable()
        and " " not in url
    )
