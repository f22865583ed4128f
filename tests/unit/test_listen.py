"""The Unix socket: appears complete, with its mode, whatever the path's length; one daemon a path."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachedaemon import listen
from cachedaemon.errors import StartError
from cachedaemon.listen import Listener

Make = Callable[..., Listener]


@pytest.fixture
def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Listeners on paths of this test, closed at its end."""
    monkeypatch.setattr(listen, "LOCK_WAIT", 0.2)
    made: list[Listener] = []

    def one(path: Path | None = None, mode: int = 0o660) -> Listener:
        made.append(Listener(path or folder / "d.sock", mode, os.getgid()))
        return made[-1]

    yield one
    for listener in made:
        listener.close()


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _same(first: os.stat_result, then: os.stat_result) -> bool:
    """Whether it is one socket, and not the next one under its name."""
    return (first.st_ino, first.st_ctime_ns) == (then.st_ino, then.st_ctime_ns)


def test_the_socket_appears_with_its_mode_and_listens_at_once(make: Make, folder: Path) -> None:
    """A watcher that looks as fast as it can never sees another mode, nor a refused connection."""
    path, seen, stop = folder / "d.sock", set(), threading.Event()
    refused = []

    def watch() -> None:
        while not stop.is_set():
            try:
                first = path.stat()
                seen.add(stat.S_IMODE(first.st_mode))
                if not _connects(path) and _same(first, path.stat()):
                    refused.append(True)
            except FileNotFoundError:
                continue

    thread = threading.Thread(target=watch)
    thread.start()
    before = os.umask(0)
    try:
        for _ in range(50):
            listener = make(mode=0o600)
            listener.lock()
            with listener.bind():
                assert path.exists()
                listener.close()
    finally:
        os.umask(before)
        stop.set()
        thread.join()
    assert seen <= {0o600}
    assert not refused


def test_a_second_listener_is_refused_and_takes_nothing_away(make: Make, folder: Path) -> None:
    first, second = make(), make()
    first.lock()
    with first.bind():
        with pytest.raises(StartError, match="another daemon listens"):
            second.lock()
        second.close()
        assert _connects(folder / "d.sock")


def test_a_stale_socket_and_a_half_made_one_are_replaced(make: Make, folder: Path) -> None:
    listener = make()
    listener.lock()
    beside = folder / f".{(folder / 'd.sock.lock').stat().st_ino}"
    beside.mkdir()
    for path in (folder / "d.sock", beside / "new"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    with listener.bind():
        assert _connects(folder / "d.sock")
        assert sorted(os.listdir(folder)) == ["d.sock", "d.sock.lock"]


def test_no_link_leads_a_new_socket_elsewhere(make: Make, folder: Path) -> None:
    """Where it is made: whoever may write in the folder could have root change the mode of any file."""
    listener = make()
    listener.lock()
    (elsewhere := folder / "elsewhere").mkdir(mode=0o700)
    (precious := elsewhere / "new").write_text("precious")
    (folder / f".{(folder / 'd.sock.lock').stat().st_ino}").symlink_to(elsewhere)
    with pytest.raises(StartError, match=r"Not a directory|Too many levels"):
        listener.bind()
    assert (precious.read_text(), precious.stat().st_mode & 0o777) == ("precious", 0o644)


@pytest.mark.root
def test_a_lock_of_somebody_elses_is_told_apart_from_a_daemon(make: Make, folder: Path) -> None:
    """One who holds it would keep the daemon from starting for ever."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lock = folder / "d.sock.lock"
    lock.touch()
    os.chown(lock, 54_321, 54_321)
    with pytest.raises(StartError, match=r"d\.sock\.lock belongs to uid 54321"):
        make().lock()


@pytest.mark.parametrize("what", ["file", "folder", "link", "fifo"])
def test_what_is_no_socket_is_left_alone(make: Make, folder: Path, what: str) -> None:
    path = folder / "d.sock"
    {
        "file": lambda: path.write_text("precious"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to("/etc/passwd"),
        "fifo": lambda: os.mkfifo(path),
    }[what]()
    before = path.lstat()
    listener = make()
    listener.lock()
    with pytest.raises(StartError, match="no socket"):
        listener.bind()
    listener.close()
    assert path.lstat().st_ino == before.st_ino


def test_closing_leaves_the_socket_of_a_successor(make: Make, folder: Path) -> None:
    """Somebody moved a socket of his own into the place: it is not ours to remove."""
    listener = make()
    listener.lock()
    with listener.bind(), socket.socket(socket.AF_UNIX) as other:
        (folder / "d.sock").unlink()
        other.bind(str(folder / "d.sock"))
        listener.close()
        assert (folder / "d.sock").exists()


@pytest.mark.parametrize("length", [1, 60, 107])
def test_a_path_of_any_possible_length(make: Make, folder: Path, length: int) -> None:
    path = folder / ("x" * max(1, length - len(str(folder)) - 1))
    listener = make(path)
    listener.lock()
    with listener.bind():
        assert _connects(path)


def test_its_folder_is_made_for_others_to_pass_whatever_the_umask(make: Make, folder: Path) -> None:
    before = os.umask(0o077)
    try:
        listener = make(folder / "run/deeper/d.sock")
        listener.lock()
        with listener.bind():
            for made in (folder / "run", folder / "run/deeper"):
                assert stat.S_IMODE(made.stat().st_mode) == 0o755
            assert stat.S_IMODE((folder / "run/deeper/d.sock.lock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_made_is_named(make: Make, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(StartError, match=r"server\.socket = .*Not a directory"):
        make(folder / "file/d.sock").lock()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_port_for_scraping(host: str) -> None:
    try:
        with listen.tcp(host, 0) as link:
            port = link.getsockname()[1]
            with pytest.raises(StartError, match=rf"server\.http = .*{port}.*in use"):
                listen.tcp(host, port)
    except StartError as cause:
        if host == "::1":
            pytest.skip(f"not here by design: no IPv6 ({cause})")
        raise


def test_a_socket_that_was_passed_is_made_anew_by_who_passed_it(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.bind(str(path := folder / "d.sock"))
        passed = listen.Passed(path, [link])
        assert not passed.is_gone()
        path.unlink()
        assert passed.is_gone()
        with pytest.raises(StartError, match=r"was removed by somebody, .*: restart its socket unit"):
            passed.bind()
