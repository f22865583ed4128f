"""A file of keys and whole URLs, as a table that takes little memory: pre-signed URLs are long, and there may be a million.

Either a JSON object `{"KEY": "URL", ...}`, or lines of a key, a TAB or spaces, and a URL; empty lines and those that begin
with `#` say nothing. UTF-8. Of a key that stands in it several times the last URL counts.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import zstandard

BLOCK = 1 << 16
"""Characters that are compressed together, about, and looked through for a key."""
BUCKETS = 1 << 12
_BLOCKS = 24
"""Bits for the number of a block."""
_HASH = (1 << (64 - _BLOCKS)) - 1
_MARK = re.compile(r"\s*([{}:,])\s*", re.ASCII)
"""What stands between the texts of a JSON object (RFC 8259)."""


class Malformed(Exception):
    """The file is no such table; says where, and what is allowed; shows no URL."""


class UrlTable:
    """Keys and URLs, in compressed blocks. `index`: in buckets by hash, each key's hash and the number of its block."""

    def __init__(self, blocks: list[bytes], index: list[array[int]]) -> None:
        self._blocks = blocks
        self._index = index

    def get(self, key: str) -> str | None:
        """The URL of a key, the last one."""
        wanted = hash(key) & _HASH
        for found in reversed(self._index[wanted % BUCKETS]):
            if found >> _BLOCKS == wanted:
                block = dict(self._entries(found & ((1 << _BLOCKS) - 1)))
                if key in block:
                    return block[key]
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
    """A table of these; None for nothing. No single step of it keeps other threads waiting for long."""
    compress = zstandard.ZstdCompressor().compress
    blocks: list[bytes] = []
    index = [array("Q") for _ in range(BUCKETS)]
    for block in _blocks(entries):
        for key, _ in block:
            hashed = hash(key) & _HASH
            index[hashed % BUCKETS].append(hashed << _BLOCKS | len(blocks))
        blocks.append(compress("\0".join(f"{url} {key}" for key, url in block).encode()))
    return UrlTable(blocks, index) if blocks else None


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
        lines = enumerate(text, 1)
        begin = next((numbered for numbered in lines if numbered[1].strip()), (0, ""))
        if begin[1].lstrip().startswith("{"):
            yield from _of_json(begin[1] + text.read())
        else:
            yield from _of_lines(chain([begin], lines))


def _of_json(text: str) -> Iterator[tuple[str, str]]:
    """Entry by entry, since the reader of the standard library takes all of a text in one step."""
    decode = json.JSONDecoder().raw_decode
    try:
        mark, at = _mark(text, 0)
        if text.startswith("}", at):
            return
        while mark in ("{", ","):
            key, at = decode(text, at)
            mark, at = _mark(text, at)
            url, at = decode(text, at) if mark == ":" else (None, at)
            if not isinstance(key, str) or not isinstance(url, str) or not _is_entry(key, url):
                msg = f"the key {key!r}: allowed are JSON text and an http or https URL in printable ASCII"
                raise Malformed(msg)
            yield key, url
            mark, at = _mark(text, at)
    except (ValueError, RecursionError):
        mark, at = "", 0
    if mark != "}" or at != len(text):
        msg = 'it begins as JSON and is none: allowed is {"KEY": "URL", ...}, or lines'
        raise Malformed(msg)


def _mark(text: str, at: int) -> tuple[str, int]:
    """The mark at a place, if there is one, and where the next text begins."""
    found = _MARK.match(text, at)
    return (found[1], found.end()) if found else ("", at)


def _of_lines(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    for number, whole in lines:
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
