"""Where a shard lies: one pure mapping of keys to names, the same for the daemon and for every reader.

A name is the key as one path segment. `A-Z a-z 0-9 . _ -` stand for themselves (a leading dot does not), every other
byte of the key's UTF-8 is `%XX`. Names over 200 bytes become `%~`, 32 hex digits of the key's sha256, `-`, and what
fits of the end. So different keys have different names, none is hidden, and none leaves its folder. The mapping never
changes for a format version.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote_to_bytes

LONGEST = 200
"""Bytes of a name that is spelled out."""
TAIL = 160
"""Bytes of the end that a shortened name keeps."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_SEGMENTS = [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in range(256)]
_ALL_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")
# Escapes of exactly those bytes that do not stand for themselves: what matches is the name of one key, and of no other.
_ESCAPE = r"%(?:[0189A-F][0-9A-F]|2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[B-F])"
_SPELLED = re.compile(rf"(?:[A-Za-z0-9_-]|%2E|{_ESCAPE})(?:[A-Za-z0-9._-]|{_ESCAPE})*\Z")
_VERSION = re.compile(r"@[0-9a-f]{8}\Z")
_SOURCE = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
SOURCE_NAMES = "lower-case letters, digits, . _ -, a letter or digit first"
"""What may be the name of a source, in words."""


def name_of(key: str) -> str:
    """The file name of `key` within its source's folder; ValueError for an empty key or one that is not Unicode text."""
    if _ALL_PLAIN.match(key):
        return key
    if not key:
        raise ValueError("a key must not be empty")
    try:
        raw = key.encode()
    except UnicodeEncodeError as cause:
        raise ValueError(f"the key {key!r} is not valid Unicode: {cause.reason}") from None
    name = "".join(_SEGMENTS[byte] for byte in raw)
    if name[0] == ".":
        name = "%2E" + name[1:]
    return name if len(name) <= LONGEST else _shortened(name, raw)


def _shortened(name: str, raw: bytes) -> str:
    tail = name[-TAIL:]
    if name[-TAIL - 1] == "%":
        tail = tail[2:]
    elif name[-TAIL - 2] == "%":
        tail = tail[1:]
    return f"%~{hashlib.sha256(raw).hexdigest()[:32]}-{tail}"


def key_of(name: str) -> str | None:
    """The key whose name this is; None for a shortened name (its meta file knows) and for what is no name at all."""
    if _ALL_PLAIN.match(name):
        return name
    if len(name) > LONGEST or not _SPELLED.match(name):
        return None
    try:
        return unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return None


def versioned(name: str, digest: str) -> str:
    """The file name of one version of a shard that may change: with the first 8 hex digits of its digest."""
    return f"{name}@{digest.rpartition(':')[2][:8]}"


def unversioned(name: str) -> str:
    """The same name for all versions of a shard. No key's name has an `@`, so nothing else ends so."""
    return _VERSION.sub("", name)


def is_shortened(name: str) -> bool:
    """Whether only the meta file of this name knows the key."""
    return re.match(r"%~[0-9a-f]{32}-", name) is not None


def is_source(name: str) -> bool:
    """Whether this may be the name of a source: `SOURCE_NAMES`."""
    return _SOURCE.match(name) is not None
