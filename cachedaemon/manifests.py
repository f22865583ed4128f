"""What the lines of a manifest of digests mean."""

from __future__ import annotations

import io
import re

from cachedaemon.model import Digest

_TAGS = {kind.upper(): kind for kind in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "xxh64")}
_TAGS["XXH128"] = "xxh3-128"
_DIGITS = {"md5": 32, "sha1": 40, "sha224": 56, "sha256": 64, "sha384": 96, "sha512": 128, "xxh64": 16, "xxh3-128": 32}
_BY_DIGITS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
"""The kind of a line that does not say it."""

# sha256sum(1): two blanks, or a blank and `*`, before the name. A backslash before the line: the name has escapes.
_PLAIN = re.compile(r"(?P<escaped>\\?)(?P<hex>[0-9A-Fa-f]+) [ *]?(?P<name>[^\0]+)")
# md5(1) of BSD, and sha256sum --tag.
_TAGGED = re.compile(r"(?P<escaped>\\?)(?P<tag>[A-Za-z0-9/_-]+) ?\((?P<name>[^\0]+)\) = (?P<hex>[0-9A-Fa-f]+)")
# Empty, a `.` or `..` segment, or no UTF-8.
_NO_KEY = re.compile(r"^$|(?:^|/)\.\.?(?:/|$)|[\ud800-\udfff]")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


def parse(data: bytes, folder: str = "") -> dict[str, Digest]:
    """Keys and digests of a manifest that lies in `folder` (with its last slash). ValueError names the line.

    Lines as sha256sum(1) and its like write them, with `--tag` and escaped names too; empty lines and those that begin
    with `#` say nothing. The kind follows from the length, or from the tag. What can be no key is passed over.
    """
    # Line by line: a thread that splits 64 MiB at once would hold up the loop.
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "surrogateescape", newline="\n")
    listed: dict[str, Digest] = {}
    for number, line in enumerate((one.removesuffix("\n").removesuffix("\r") for one in text), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, digest = _entry(line, number)
        key = folder + name
        if _NO_KEY.search(key):  # of another file: it harms no other line
            continue
        before = listed.setdefault(key, digest)
        if before.kind == digest.kind and before != digest:
            raise ValueError(f"line {number} gives another {digest.kind} for {key!r} than a line before")
        if len(digest.value) > len(before.value):
            listed[key] = digest
    return listed


def _entry(line: str, number: int) -> tuple[str, Digest]:
    if found := _PLAIN.fullmatch(line):
        kind = _BY_DIGITS.get(len(found["hex"]))
    elif found := _TAGGED.fullmatch(line):
        kind = _TAGS.get(found["tag"].upper())
    else:
        raise ValueError(f"line {number} is not that of a checksum: {_shown(line)}")
    if kind is None or len(found["hex"]) != _DIGITS[kind]:
        allowed = ", ".join(f"{tag} ({_DIGITS[kind]})" for tag, kind in _TAGS.items())
        raise ValueError(f"line {number} has a digest that cannot be: {_shown(line)}; allowed are {allowed} hex digits")
    name = found["name"]
    if found["escaped"]:
        name = re.sub(r"\\.", lambda escape: _unescaped(escape[0], number), name)
    return _without_dots(name), Digest(kind, bytes.fromhex(found["hex"]))


def _unescaped(escape: str, number: int) -> str:
    try:
        return _ESCAPES[escape]
    except KeyError:
        raise ValueError(f"line {number}: the escape {escape} in the name is not known") from None


def _without_dots(name: str) -> str:
    """`./a/b` is what `find` prints for `a/b`."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return name


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")
