"""Tar archives of every common kind: v7, ustar, GNU and pax, with long names, base-256 numbers and sparse members.

One reader serves files that can be positioned and streams that cannot: it only ever goes forward. An archive has to
end with a block of zeros, and nothing but zeros may follow: of concatenated archives the second would be lost silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from cachedaemon.archives import tar_fields as fields
from cachedaemon.archives.catalog import FILE, FOLDER, HARDLINK, SYMLINK, Bounds, Catalog, Entry
from cachedaemon.archives.names import bad, clean
from cachedaemon.archives.tar_fields import BLOCK, ZEROS, Header
from cachedaemon_client.member_table import SPARSE

_EXTRA_MOST = 1 << 20  # bytes of a pax header, a long name or a sparse map

_REGULAR = (b"0", b"\0", b"7")
_SPECIAL = {b"3": "a character device", b"4": "a block device", b"6": "a pipe"}


class Source(Protocol):
    """Where a tar is read from, forward only."""

    position: int

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end."""

    def skip(self, size: int) -> bool:
        """Go forward; False when the end comes before."""


class _Extras(NamedTuple):
    """What headers in front of a member's own say about it."""

    name: bytes | None = None
    target: bytes | None = None
    pax: tuple[tuple[bytes, bytes], ...] = ()


def scan(source: Source, bounds: Bounds) -> Catalog:
    """Everything in the archive; raises BadArchive."""
    catalog = Catalog(bounds)
    for entry in members(source):
        catalog.add(entry)
    catalog.finish()
    return catalog


def members(source: Source) -> Iterator[Entry]:
    """The members in order; when one is given out, the source stands at its data, and what is left of it is skipped.

    Reads on to the end of the source, so that a compressed stream is checked to its last byte.
    """
    extras, shared = _Extras(), dict[bytes, bytes]()
    first = True
    while (header := _next_header(source, first=first)) is not None:
        first = False
        if header.form in b"LKxXg":
            extras = _with_extra(source, header, extras, shared)
            continue
        entry, end = _entry(source, header, extras, shared)
        extras = _Extras()
        if entry is not None:
            yield entry
        if not source.skip(end - source.position):
            raise bad("truncated", header.name, "the archive ends within it")
    if extras != _Extras():
        raise bad("corrupt", extras.name, "the archive ends after a header that announces a member")
    _check_rest(source)


def _next_header(source: Source, *, first: bool) -> Header | None:
    block = source.read(BLOCK)
    if block == ZEROS:
        return None
    if len(block) < BLOCK:
        if first and block[257:262] != b"ustar":
            raise bad("not-an-archive", None, "not a tar archive: it is shorter than one header")
        raise bad("truncated", None, "the archive ends without its end mark")
    if not fields.is_header(block):
        if first:
            raise bad("not-an-archive", None, "not a tar archive: its first block is no header")
        raise bad("corrupt", None, f"no header at byte {source.position - BLOCK}")
    return fields.parse(block)


def _check_rest(source: Source) -> None:
    while data := source.read(1 << 16):
        if data.count(0) != len(data):
            raise bad("corrupt", None, "there are bytes behind the archive's end mark")


def _read_data(source: Source, header: Header) -> bytes:
    """The data of an extra header."""
    if header.size > _EXTRA_MOST:
        raise bad("limit", header.name, f"a header of {header.size} bytes, allowed are {_EXTRA_MOST}")
    data = source.read(header.size)
    if len(data) < header.size or not source.skip(-header.size % BLOCK):
        raise bad("truncated", header.name, "the archive ends within a header")
    return data


def _with_extra(source: Source, header: Header, extras: _Extras, shared: dict[bytes, bytes]) -> _Extras:
    data = _read_data(source, header)
    if header.form == b"L":
        return extras._replace(name=data.split(b"\0", 1)[0])
    if header.form == b"K":
        return extras._replace(target=data.split(b"\0", 1)[0])
    records = fields.pax_records(data, header.name)
    if header.form == b"g":
        shared.update(records)
        return extras
    return extras._replace(pax=(*extras.pax, *records))


def _entry(source: Source, header: Header, extras: _Extras, shared: dict[bytes, bytes]) -> tuple[Entry | None, int]:
    """The member, and where in the source its data ends; None for what is no member."""
    pax = shared | dict(extras.pax)
    name = pax.get(b"path", extras.name if extras.name is not None else header.name)
    target = pax.get(b"linkpath", extras.target if extras.target is not None else header.target)
    stored = fields.decimal(pax[b"size"], name) if b"size" in pax else header.size
    if header.form in _REGULAR and not (header.form != b"7" and name.endswith(b"/") and not stored):
        return _file(source, name, stored, [*shared.items(), *extras.pax])
    if header.form == b"S":
        return _old_sparse(source, header, name, stored)
    if header.form == b"V":  # a volume's label
        return None, _end(source, stored)
    # A size on a folder or a link announces no data, whatever it says.
    return _without_data(header.form, name, target), source.position


def _without_data(form: bytes, name: bytes, target: bytes) -> Entry:
    if form in _SPECIAL:
        raise bad("special-file", name, _SPECIAL[form])
    if form == b"1":
        return Entry(HARDLINK, clean(name), target=target)
    if form == b"2":
        return Entry(SYMLINK, clean(name), target=target)
    if form == b"5" or form in _REGULAR:
        return Entry(FOLDER, clean(name))
    raise bad("unsupported", name, f"a member of type {form!r}")


def _end(source: Source, stored: int) -> int:
    return source.position + stored + -stored % BLOCK


def _file(source: Source, name: bytes, stored: int, records: list[tuple[bytes, bytes]]) -> tuple[Entry, int]:
    pax = dict(records)
    start, end = source.position, _end(source, stored)
    pairs: list[tuple[int, int]] | None
    if pax.get(b"GNU.sparse.major") == b"1":
        pairs = _data_map(source, name, end)
        stored -= source.position - start
    else:
        pairs = fields.pax_map(records, name)
    size_text = pax.get(b"GNU.sparse.realsize", pax.get(b"GNU.sparse.size"))
    if pairs is None and size_text is None:
        return Entry(FILE, clean(name), source.position, stored, stored), end
    size = fields.decimal(size_text, name) if size_text is not None else stored
    name = pax.get(b"GNU.sparse.name", name)
    return _sparse(source, name, size, stored, pairs or []), end


def _sparse(source: Source, name: bytes, size: int, stored: int, pairs: list[tuple[int, int]]) -> Entry:
    found = fields.extents(pairs, size, stored, source.position, name)
    if len(found) == 1 and found[0].length == size:
        return Entry(FILE, clean(name), source.position, stored, size)
    return Entry(FILE, clean(name), source.position, stored, size, method=SPARSE, extents=found)


def _old_sparse(source: Source, header: Header, name: bytes, stored: int) -> tuple[Entry, int]:
    """GNU's type S: four pieces in the header, 21 more in each block behind it."""
    pairs = fields.gnu_map(header.block, 386, 4, name)
    size = fields.number(header.block[483:495], name)
    more = header.block[482]
    while more:
        block = source.read(BLOCK)
        if len(block) < BLOCK:
            raise bad("truncated", name, "the archive ends within its sparse map")
        pairs += fields.gnu_map(block, 0, 21, name)
        more = block[504]
        if len(pairs) * 24 > _EXTRA_MOST:
            raise bad("limit", name, f"a sparse map of more than {_EXTRA_MOST} bytes")
    return _sparse(source, name, size, stored, pairs), _end(source, stored)


def _data_map(source: Source, name: bytes, end: int) -> list[tuple[int, int]]:
    """The map of the pax form 1.0: decimal lines in the first blocks of the data, the first says how many pairs."""
    blocks: list[bytes] = []
    lines, wanted = 0, 1
    while lines < wanted:
        if source.position >= end or len(blocks) * BLOCK > _EXTRA_MOST:
            raise bad("corrupt", name, "its sparse map has no end")
        block = source.read(BLOCK)
        if len(block) < BLOCK:
            raise bad("truncated", name, "the archive ends within its sparse map")
        blocks.append(block)
        lines += block.count(b"\n")
        if wanted == 1 and lines:
            wanted += 2 * fields.decimal(b"".join(blocks).split(b"\n", 1)[0], name)
    numbers = [fields.decimal(line, name) for line in b"".join(blocks).split(b"\n")[1:wanted]]
    return list(zip(numbers[::2], numbers[1::2], strict=True))
