"""From what a person writes to what the daemon computes with; each parser raises ValueError that says what is allowed."""

from __future__ import annotations

import errno
import grp
import math
import os
import re
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SOCKET_PATH_MAX = 107
"""Bytes of a Unix socket's path: `sun_path` has 108 with its closing NUL (unix(7))."""

_SIZES = {
    "": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_TIMES = {"": Fraction(1), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
_MOST = 2**63 - 1
_ID_MOST = 2**32 - 2  # the last one means "no change" to chown(2)

SIZE = "allowed are bytes as a whole number, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB; 0 means none"
DURATION = "allowed are seconds as a number, or a number with ms, s, m or h; 0 means none"
SHARE = "allowed are a percentage from 0% to below 100%, or a size: " + SIZE.removeprefix("allowed are ")
MODE = 'allowed is an octal mode as text, such as "0660"'
ADDRESS = 'allowed are HOST:PORT, such as "127.0.0.1:9464" or "[::1]:9464", and "" for none'


class Address(NamedTuple):
    """Where the HTTP listener binds; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a file system: a fraction of it, or a number of bytes."""

    fraction: Fraction | None
    size: int = 0

    def of(self, total_bytes: int) -> int:
        """Bytes that this is of a file system of `total_bytes`, rounded up."""
        return self.size if self.fraction is None else math.ceil(self.fraction * total_bytes)

    def of_inodes(self, total_inodes: int, total_bytes: int) -> int:
        """Inodes likewise: the same part of them as of the bytes. 0 where the file system counts no inodes."""
        if self.fraction is not None:
            return math.ceil(self.fraction * total_inodes)
        part = Fraction(min(self.size, total_bytes), total_bytes) if total_bytes else Fraction(0)
        return math.ceil(part * total_inodes)


def _with_unit(value: object, units: dict[str, int] | dict[str, Fraction], allowed: str) -> Fraction:
    """A number, or text of a number and one of the units, as an exact multiple of the base unit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(allowed)  # noqa: TRY004 - pydantic collects ValueError, a TypeError would fly through it
    found = re.fullmatch(r"(\d{1,19}(?:\.\d{1,9})?) ?([A-Za-z]*)", str(value), re.ASCII)
    if not found or found[2] not in units:
        raise ValueError(allowed)
    return Fraction(found[1]) * units[found[2]]


def size(value: object) -> int:
    """Bytes."""
    number = _with_unit(value, _SIZES, SIZE)
    if number.denominator != 1 or number > _MOST:
        raise ValueError(SIZE)
    return int(number)


def duration(value: object) -> float:
    """Seconds."""
    return float(_with_unit(value, _TIMES, DURATION))


def share(value: object) -> Share:
    """A percentage or bytes."""
    if not isinstance(value, str) or not value.endswith("%"):
        try:
            return Share(None, size(value))
        except ValueError:
            raise ValueError(SHARE) from None
    fraction = _with_unit(value.removesuffix("%").rstrip(), {"": 1}, SHARE) / 100
    if fraction >= 1:
        raise ValueError(SHARE)
    return Share(fraction)


def revalidate(value: object) -> str | float:
    """`"never"`, `"always"`, or seconds for which an answer of the origin is believed."""
    if value in ("never", "always"):
        return str(value)
    allowed = 'allowed are "never", "always" and a duration above 0 (a number with ms, s, m or h)'
    seconds = float(_with_unit(value, _TIMES, allowed))
    if not seconds:
        raise ValueError(allowed)
    return seconds


def count(least: int) -> Callable[[object], int]:
    """A parser of whole numbers from `least` up."""

    def parse(value: object) -> int:
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < least:
            msg = f"allowed is a whole number from {least} up"
            raise ValueError(msg)
        return int(text)

    return parse


def flag(value: object) -> bool:
    """A boolean, or its word in the environment."""
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    msg = "allowed are true and false"
    raise ValueError(msg)


def one_of(*words: str) -> Callable[[object], str]:
    """A parser of one word out of `words`."""

    def parse(value: object) -> str:
        if value not in words:
            raise ValueError("allowed are " + ", ".join(f'"{word}"' for word in words))
        return str(value)

    return parse


def text(value: object) -> str:
    """Text that is not empty and has no control characters."""
    if not isinstance(value, str) or not re.fullmatch("[^\x00-\x1f\x7f]+", value):
        msg = "allowed is text without control characters"
        raise ValueError(msg)
    return value


def region(value: object) -> str:
    """The name of a region, which becomes part of a host's name."""
    if not isinstance(value, str) or not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,62}", value, re.ASCII):
        msg = (
            "allowed is the name of a region, such as eu-central-1: letters, digits, '-' and '_', at most 63 characters"
        )
        raise ValueError(msg)
    return value


def key(value: object) -> str:
    """The key of an object in a source."""
    found = text(value)
    if any(segment in (".", "..") for segment in found.split("/")) or len(found.encode(errors="replace")) > 4096:
        msg = "allowed is a key of the source, of at most 4096 bytes, without '.' and '..' segments"
        raise ValueError(msg)
    return found


def path(value: object) -> Path:
    """An absolute path; a relative one counts from the working directory, `~` is the user's home."""
    return Path(os.path.abspath(os.path.expanduser(text(str(value) if isinstance(value, Path) else value))))


def open_regular(where: Path) -> BinaryIO:
    """A file, opened to be read. OSError for whatever is no regular one: a FIFO would be waited for without end."""
    file = open(where, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - given away
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def readable(value: object) -> Path:
    """The path of a file that can be opened now."""
    where = path(value)
    try:
        with open_regular(where):
            return where
    except OSError as error:
        msg = f"the file cannot be read ({error.strerror}); allowed is a readable file"
        raise ValueError(msg) from None


def authorities(value: object) -> Path:
    """The path of a file with certificates in it, in PEM, that can be read now."""
    import ssl  # noqa: PLC0415 - 10 ms that commands do without

    where = readable(value)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(where)
    except OSError as error:  # ssl.SSLError is one
        msg = "there is no certificate that could be used in the file; allowed are certificates in PEM"
        raise ValueError(msg) from error
    return where


def socket_path(value: object) -> Path:
    """A path that fits into a socket's address."""
    where = path(value)
    length = len(os.fsencode(where))
    if length > SOCKET_PATH_MAX:
        msg = f"the path has {length} bytes; allowed are at most {SOCKET_PATH_MAX}"
        raise ValueError(msg)
    return where


def mode(value: object) -> int:
    """Permission bits."""
    if not isinstance(value, str) or not re.fullmatch(r"(0o|0)?[0-7]{3}", value):
        raise ValueError(MODE)
    return int(value, 8)


def group(value: object) -> int:
    """The number of a group, given by name or number; a number needs no name (containers have none for theirs)."""
    number = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if re.fullmatch(r"\d{1,10}", number, re.ASCII):
        if int(number) <= _ID_MOST:
            return int(number)
        msg = f"allowed are group numbers up to {_ID_MOST}"
        raise ValueError(msg)
    try:
        return grp.getgrnam(number).gr_gid
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        msg = "no such group; allowed is the name or number of a group of this machine"
        raise ValueError(msg) from None


def address(value: object) -> Address | None:
    """Host and port, None for no listener."""
    if value == "":
        return None
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9._-]+):(\d{1,5})", str(value), re.ASCII)
    if not found or int(found[2]) > 65535:
        raise ValueError(ADDRESS)
    return Address(found[1].strip("[]"), int(found[2]))


def kind_of(value: object) -> str:
    """What a value is, as a person says it: for messages about values that must not be shown."""
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    return "nothing" if value is None else words.get(type(value), "a time")


def optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """The parser, with None and empty text for "not set" (an environment variable cannot say None)."""
    return lambda value: None if value is None or value == "" else parse(value)
