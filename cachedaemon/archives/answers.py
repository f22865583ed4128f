"""What a worker says, taken with care: a process that has read something hostile may say anything."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from cachedaemon.archives import REASONS
from cachedaemon.archives.process import Lied
from cachedaemon.errors import BadArchive, CacheDaemonError, NoSpace
from cachedaemon.model import Need

_TEXT_MOST = 8192  # characters of a message or a name
_DIGEST = re.compile(r"tree-xxh3-128:[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What has been unpacked: members that can be read, their bytes, allocated bytes, the tree's digest."""

    members: int
    size: int
    blocks: int
    digest: str


def cause_of_death(status: int | None) -> CacheDaemonError:
    """Two workers died alike. A kill is most likely the kernel's, for want of memory; a crash is the archive's doing."""
    if status == -signal.SIGKILL:
        return BadArchive("reading the archive was killed twice, as when memory runs out", reason="limit")
    if status is not None and status < 0:
        return BadArchive(f"reading the archive crashes (signal {-status})", reason="corrupt")
    return CacheDaemonError(f"the process for reading archives does not run: it ends with status {status}")


def members(found: object) -> dict[str, object]:
    """An object's members; raises Lied, as all of these do."""
    if not isinstance(found, dict):
        raise Lied("an answer without members")
    return found


def whole(number: object) -> int:
    """A count."""
    if type(number) is not int or number < 0:
        raise Lied("a number is missing")
    return number


def count(done: dict[str, object], name: str) -> int:
    """The count of that name."""
    return whole(done.get(name))


def need(found: object) -> Need:
    """Room that is asked for."""
    if not isinstance(found, list) or len(found) != 2:
        raise Lied("it needs what cannot be given")
    return Need(whole(found[0]), whole(found[1]))


def unpacked(done: dict[str, object]) -> Unpacked:
    """The outcome of unpacking."""
    digest = done.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise Lied("the digest is missing")
    return Unpacked(count(done, "members"), count(done, "size"), count(done, "blocks"), digest)


def refusal(answer: dict[str, object]) -> CacheDaemonError:
    """The error that an answer other than success stands for."""
    if "disk" in answer:
        return NoSpace(f"the archive cannot be read or unpacked: {answer['disk']}")
    found = members(answer.get("bad"))
    message, reason, member = found.get("message"), found.get("reason"), found.get("member")
    if not isinstance(message, str) or reason not in REASONS or not isinstance(member, str | None):
        raise Lied("a refusal without a reason")
    return BadArchive(message[:_TEXT_MOST], reason=reason, member=member[:_TEXT_MOST] if member else member)
