"""Folders that others of the machine could put something of theirs in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cachedaemon.errors import StartError
from cachedaemon.guarded import doubts, make_folder, make_way
from cachedaemon.store.directory import Directory, SourceMark
from cachedaemon.store.layout import Layout, Modes
from cachedaemon.store.start import lock, make_folders, make_root

STRANGER = 54_321
SETTING = "cache.dir"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def give(path: Path) -> Path:
    os.chown(path, STRANGER, STRANGER)
    return path


def made(path: Path, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def take(layout: Layout) -> None:
    """As a start does."""
    os.close(lock(layout, wait=0))
    make_folders(layout, Modes.for_group(None))


def test_a_folder_of_ones_own_in_tmp_is_fine(folder: Path) -> None:
    """`/tmp` is sticky: what is ours stays ours."""
    assert doubts(made(folder / "cache"), SETTING) == []


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everybody"), (0o775, "group 54321")])
def test_whoever_may_write_on_the_way_is_told_of(folder: Path, mode: int, who: str) -> None:
    """A container's shared folder is like that: so it is a warning."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    shared = made(folder / "shared", mode)
    os.chown(shared, 0, STRANGER)
    said = f"cache.dir: {who} may write in {shared}, and put something else in the place of what lies there"
    assert doubts(made(shared / "cache"), SETTING) == [said]
    shared.chmod(0o1777)
    assert doubts(shared / "cache", SETTING) == []


@pytest.mark.root
@needs_root
def test_somebody_elses_home_is_told_of(folder: Path) -> None:
    home = give(made(folder / "home"))
    assert doubts(made(home / "cache"), SETTING) == [
        f"cache.dir: {home} belongs to uid {STRANGER}, who can put something else in its place"
    ]


@pytest.mark.root
@needs_root
def test_a_name_that_somebody_took_in_an_open_folder_is_refused(folder: Path) -> None:
    """As `/tmp/cache`, made by a stranger before the daemon came; behind a link of a stranger's, too."""
    open_to_all = made(folder / "open", 0o1777)
    taken = give(made(open_to_all / "taken"))
    for path in (taken, made(taken / "cache")):
        with pytest.raises(StartError, match=f"{taken} belongs to uid {STRANGER}"):
            doubts(path, SETTING)
    link = folder / "link"
    link.symlink_to(taken)
    with pytest.raises(StartError, match=f"{taken} belongs to uid {STRANGER}"):
        doubts(link / "cache", SETTING)


def test_the_way_is_made_for_readers_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        make_way(folder / "a/b/c", SETTING)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((folder / one).stat().st_mode) for one in ("a", "a/b")] == [0o755, 0o755]
    assert not (folder / "a/b/c").exists()


def test_a_link_in_a_folders_place_is_refused(folder: Path) -> None:
    """And what it leads to keeps its mode."""
    (folder / "link").symlink_to(made(folder / "elsewhere", 0o700))
    with pytest.raises(StartError, match="is a symbolic link"):
        make_folder(folder / "link", 0o755, None, SETTING)
    assert stat.S_IMODE((folder / "elsewhere").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["daemon.lock", "shards", "plans", "trash"])
def test_links_in_the_cache_directory_are_refused(folder: Path, name: str) -> None:
    layout = Layout(folder / "cache")
    make_root(layout.root, Modes.for_group(None))
    (layout.root / name).symlink_to(made(folder / "elsewhere"))
    with pytest.raises((StartError, OSError), match=r"symbolic link"):
        take(layout)
    assert os.listdir(folder / "elsewhere") == []


def test_what_is_in_the_way_is_named(folder: Path) -> None:
    """A file that is no file, say: which one it is stands in the error."""
    (way := folder / "meta" / "s").mkdir(parents=True)
    os.mkfifo(way / ".source")
    directory = Directory(Layout(folder), Modes.for_group(None))
    with pytest.raises(StartError, match=rf"cannot be used: not a regular file \({way}/.source\)$"):
        directory.open([SourceMark("s", "digest", "index", direct=True)])


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("name", ["daemon.lock", "shards", "trash"])
def test_what_is_somebody_elses_in_the_cache_directory_is_refused(folder: Path, name: str) -> None:
    layout = Layout(folder / "cache")
    make_root(layout.root, Modes.for_group(None))
    place = layout.root / name
    place.touch() if name == "daemon.lock" else place.mkdir()
    give(place)
    with pytest.raises(StartError, match=f"{place} belongs to uid {STRANGER}"):
        take(layout)
