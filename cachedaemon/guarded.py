"""Places that other users of the machine must not be able to put something of theirs in: the cache directory, the socket.

Whoever owns a folder, or may write in it, can put another thing in the place of what lies there; a sticky folder such as /tmp
keeps what is there, and lets anybody take a name that is not taken yet.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from cachedaemon.errors import StartError

_WHOLE = ["0", "0", "4294967295"]
"""What /proc/self/uid_map says outside of user namespaces (user_namespaces(7))."""


def refuse_others(path: Path | str, seen: os.stat_result, setting: str) -> None:
    """`StartError` when what lies there is another user's: it may be root's, or the daemon's own."""
    if _is_others(seen):
        raise StartError(
            f"{setting}: {path} belongs to uid {seen.st_uid}, who could put something else in its place; allowed are "
            "root's and the daemon's own"
        )


def doubts(path: Path, setting: str) -> list[str]:
    """What is not as it should be with the folders on the way to `path`, itself included; `StartError` when one is squatted.

    Only warned of is what can be meant: folders that others own or write in, as in containers and homes.
    """
    found = []
    is_open = False
    for folder in _way(Path(os.path.realpath(path))):
        seen = os.stat(folder)
        if is_open:
            refuse_others(folder, seen, setting)
        if _is_others(seen):
            found.append(f"{setting}: {folder} belongs to uid {seen.st_uid}, who can put something else in its place")
        elif not seen.st_mode & stat.S_ISVTX and (who := _writers(seen)):
            found.append(
                f"{setting}: {who} may write in {folder}, and put something else in the place of what lies there"
            )
        is_open = bool(seen.st_mode & stat.S_ISVTX and seen.st_mode & stat.S_IWOTH)
    return found


def _way(path: Path) -> list[Path]:
    """All folders from the root on; a file is none."""
    return [one for one in reversed((path, *path.parents)) if one.is_dir()]


def _writers(seen: os.stat_result) -> str | None:
    """Who besides the owner may write in a folder, in words."""
    if seen.st_mode & stat.S_IWOTH:
        return "everybody"
    if seen.st_mode & stat.S_IWGRP and seen.st_gid not in {0, os.getegid()}:
        return f"group {seen.st_gid}"
    return None


def _is_others(seen: os.stat_result) -> bool:
    """In a user namespace all owners but a few have the same number, which says nothing."""
    return seen.st_uid not in {0, os.geteuid()} and _is_whole()


def _is_whole() -> bool:
    with contextlib.suppress(OSError):
        return Path("/proc/self/uid_map").read_text("ascii").split() == _WHOLE
    return True


def make_folder(path: Path | str, mode: int, group: int | None, setting: str) -> None:
    """A folder of this mode and group, made where it is missing; `StartError` where a link or another user's is there.

    What is changed is what was looked at, whatever is put in its place meanwhile.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if os.path.islink(path):
        raise StartError(f"{path} is a symbolic link: links are not followed in the cache directory")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        refuse_others(path, os.fstat(descriptor), setting)
        if group is not None:
            _give(descriptor, path, group)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _give(descriptor: int, path: Path | str, group: int) -> None:
    try:
        os.fchown(descriptor, -1, group)
    except PermissionError as cause:
        why = (
            f"cannot be given to group {group} (server.socket_group): allowed are groups that user {os.geteuid()} is in"
        )
        raise StartError(f"{path} {why}") from cause


def make_way(path: Path, setting: str) -> None:
    """The folders that lead to a folder, where they are missing: readers can pass, whatever the umask is."""
    for parent in reversed([one for one in path.parents if not one.exists()]):
        make_folder(parent, 0o755, None, setting)
