"""What a service manager says in the environment."""

from __future__ import annotations

import pytest

from cachedaemon.config import Handed, take_handed

ALL = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def test_everything_is_read_and_removed() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": "7",
        "LISTEN_FDS": "2",
        "LISTEN_PID": "7",
        "LISTEN_FDNAMES": "one:two",
        "OTHER": "stays",
    }
    assert take_handed(environ, 7) == Handed("/run/systemd/notify", 30.0, ((3, "one"), (4, "two")))
    assert environ == {"OTHER": "stays"}


def test_nothing_is_said_without_a_service_manager() -> None:
    assert take_handed({}, 7) == Handed(None, 0.0, ())


def test_what_is_meant_for_another_process_is_removed_and_not_taken() -> None:
    environ = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8", "LISTEN_FDS": "1", "LISTEN_PID": "8"}
    assert take_handed(environ, 7) == Handed()
    assert not environ


def test_a_watchdog_without_a_pid_is_for_whoever_reads_it() -> None:
    assert take_handed({"WATCHDOG_USEC": "500000"}, 7).watchdog == 0.5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", ["", "-1", "x", "1.5", "९", "9" * 40])
def test_what_makes_no_sense_counts_as_not_there(name: str, value: str) -> None:
    assert take_handed({name: value, "LISTEN_FDNAMES": "a:b"}, 7) == Handed()


def test_no_process_has_so_many_descriptors() -> None:
    assert take_handed({"LISTEN_FDS": "99999999999", "LISTEN_PID": "7"}, 7) == Handed()


def test_names_that_do_not_match_do_not_count() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "one"}
    assert take_handed(environ, 7).sockets == ((3, ""), (4, ""))
