"""The commands against a real daemon: what they print, and their exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes import content, readers
from tests.fakes.daemon import COMMAND, Daemon
from tests.fakes.origin import Gate, Origin, Status
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import OrdinaryUser
    from tests.fakes.daemon import Ran

HEAVY = ("aiohttp", "pydantic", "uvloop", "prometheus_client", "rich", "asyncio")


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with Origin() as one:
        for number in range(6):
            one.put(f"img-{number}.bin", 10_000 + number)
        one.put("deep/a b.bin", 777)
        one.put("new\nline.bin", 5)
        yield one


@pytest.fixture(scope="module")
def daemon(origin: Origin) -> Iterator[Daemon]:
    with Daemon({"s": origin.url, "other": origin.url}, max_shards=20, grace="500ms") as one:
        yield one


def _failed(ran: Ran, status: int, *words: str) -> None:
    """One line says why, and no traceback."""
    assert ran.status == status, ran
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" not in ran.err
    assert all(word in ran.err for word in words), ran.err


# ---- get


def test_get_prints_paths_in_the_order_of_the_keys(daemon: Daemon) -> None:
    ran = daemon.cli("get", "s", "img-1.bin", "deep/a b.bin", "img-0.bin", "img-1.bin")
    assert (ran.status, ran.err) == (0, "")
    one, two, three, four = ran.out.splitlines()
    assert content.matches(one, "img-1.bin", 10_001)
    assert content.matches(two, "deep/a b.bin", 777)
    assert content.matches(three, "img-0.bin", 10_000)
    assert four == one


def test_get_leaves_the_grace_time_after_its_end(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=2, grace="30s") as daemon:
        paths = daemon.cli("get", "s", "img-0.bin", "img-1.bin").out.splitlines()
        said = daemon.acquire("s", "img-2.bin", wait=0.5)
        assert said.code in ("cache_full", "wait_expired")
        assert all(Path(path).exists() for path in paths)


def test_get_of_more_keys_than_the_cache_holds_gives_one_after_the_other(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=2, grace="100ms") as daemon:
        ran = daemon.cli("get", "s", *(f"img-{number}.bin" for number in range(6)))
        assert ran.status == 0, ran.err
        assert [Path(line).name for line in ran.out.splitlines()] == [f"img-{number}.bin" for number in range(6)]


def test_get_of_what_is_not_there_names_it(daemon: Daemon) -> None:
    ran = daemon.cli("get", "s", "img-0.bin", "none.bin")
    _failed(ran, 1, "s/none.bin")
    assert ran.out.splitlines() == [str(daemon.path("s", "img-0.bin"))]


@pytest.mark.parametrize("words", [["get"], ["exec"]])
def test_an_origin_is_asked_once_for_what_is_not_there(origin: Origin, daemon: Daemon, words: list[str]) -> None:
    """Although what follows is fetched ahead: the first shard holds the command up until the other has failed."""
    gate = Gate(1)
    origin.put("gated.bin", 100, gate=gate)
    origin.put("lost.bin", 100, always=Status(404))
    program = ["--", "true", "{}"] if words == ["exec"] else []
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(daemon.cli, *words, "s", "gated.bin", "lost.bin", *program)
        until(lambda: origin["lost.bin"].gets == 1 and len(daemon.status()["fetches"]) == 1, 20, "the failure")
        gate.open()
        _failed(ran.result(), 125 if program else 1, "s/lost.bin")
    assert origin["lost.bin"].gets == 1
    daemon.evict("s", "gated.bin")


def test_an_unknown_source_is_told_with_those_there_are(daemon: Daemon) -> None:
    _failed(daemon.cli("get", "nosuch", "a"), 1, "nosuch", "other, s")
    _failed(daemon.cli("get", "No Such", "a"), 1, "No Such")
    _failed(daemon.cli("ls", "nosuch"), 1, "nosuch")
    _failed(daemon.cli("prefetch", "nosuch", "a"), 1, "nosuch")
    _failed(daemon.cli("evict", "nosuch", "a"), 1, "nosuch")
    _failed(daemon.cli("watch", "nosuch"), 1, "nosuch")
    assert daemon.cli("watch", "nosuch").err == daemon.cli("ls", "nosuch").err


def test_a_name_that_no_source_can_have_is_told_with_what_is_allowed(daemon: Daemon) -> None:
    for words in (("get", "No Such", "a"), ("exec", "No Such", "a", "--", "true", "{}"), ("prefetch", "No Such", "a")):
        assert "lower-case letters, digits" in daemon.cli(*words).err


def test_get_gives_up_after_its_wait(origin: Origin, daemon: Daemon) -> None:
    origin.put("slow.bin", 100, latency=30)
    _failed(daemon.cli("get", "s", "slow.bin", "--wait", "0.3"), 1, "slow.bin")


def test_a_get_is_one_request_a_shard(origin: Origin, daemon: Daemon) -> None:
    """Cold a miss, warm a hit, and what is named twice is asked for once."""
    origin.put("counted-1.bin", 100)
    origin.put("counted-2.bin", 100)

    def requests(source: str) -> float:
        return daemon.metric("requests_total", source=source)

    def misses() -> float:
        return daemon.metric("requests_total", source="other", result="miss")

    before, missed = requests("other"), misses()
    assert daemon.cli("get", "other", "counted-1.bin").status == 0
    assert (requests("other") - before, misses() - missed) == (1, 1)
    assert daemon.cli("get", "other", "counted-1.bin").status == 0
    assert (requests("other") - before, misses() - missed) == (2, 1)
    assert daemon.cli("get", "other", "counted-1.bin", "counted-2.bin", "counted-1.bin").status == 0
    assert requests("other") - before == 4
    assert daemon.cli("evict", "other", "--all").status == 0


def test_ctrl_c_ends_a_get_without_a_traceback(origin: Origin, daemon: Daemon) -> None:
    origin.put("slower.bin", 100, latency=30)
    command = [COMMAND, "get", "s", "slower.bin", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        until(lambda: daemon.status()["waiters"] > 0, 20, "the waiter")
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    assert (child.returncode, out, err) == (130, "", "")


# ---- no daemon


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("ls",),
        ("get", "s", "a"),
        ("prefetch", "s", "a"),
        ("evict", "s", "a"),
        ("evict", "s", "--all"),
        ("watch",),
    ],
)
def test_without_a_daemon_the_status_is_3(words: tuple[str, ...], daemon: Daemon) -> None:
    nobody = str(daemon.home / "nobody.sock")
    _failed(daemon.cli(*words, "--socket", nobody), 3, nobody)
    _failed(daemon.cli(*words, env={"CACHEDAEMON_SOCKET": nobody}), 3, nobody)


def test_a_socket_that_this_user_may_not_use_is_no_daemon_either(folder: Path, as_user: OrdinaryUser) -> None:
    path = folder / "d.sock"
    folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        for words in (["status"], ["get", "s", "a"], ["watch"], ["evict", "s", "a"]):
            ran = as_user.run([COMMAND, *words, "--socket", str(path)])
            assert ran.returncode == 3, ran
            assert ran.stderr == f"cachedaemon: no permission to use the socket {path}: Permission denied\n"


@pytest.mark.parametrize("length", [107, 108, 150])
def test_a_socket_path_that_is_too_long_is_told(length: int, daemon: Daemon) -> None:
    """C-63: 107 bytes are possible, and the message says so."""
    path = "/tmp/".ljust(length, "x")
    ran = daemon.cli("status", "--socket", path)
    _failed(ran, 3 if length == 107 else 1, path, *(() if length == 107 else ("107", str(length))))


# ---- usage


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("status", "--frobnicate"),
        ("get",),
        ("get", "s"),
        ("get", "s", "a", "--wait", "soon"),
        ("get", "s", "a", "--wait", "-1"),
        ("get", "s", "a", "--wait", "inf"),
        ("get", "s", "a", "--wait", "nan"),
        ("evict", "s"),
        ("evict", "s", "a", "--all"),
        ("prefetch", "s"),
        ("prefetch", "s", "--from", "/nonexistent"),
        ("prefetch", "s", "--template", "img-{0..x}.bin"),
        ("exec", "s", "a", "--", "cat"),
        ("exec", "s", "a"),
        ("exec", "s", "a", "--"),
        ("serve", "--source", "nothing"),
        ("serve", "--source", "=http://x/"),
        (),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...], daemon: Daemon) -> None:
    ran = daemon.cli(*words)
    assert ran.status == 2, ran
    assert ran.err
    assert "Traceback" not in ran.err


def test_version_and_help(daemon: Daemon) -> None:
    assert daemon.cli("--version").out.startswith("cachedaemon 0.")
    everything = daemon.cli("--help").out
    for command in (
        "get",
        "exec",
        "prefetch",
        "status",
        "ls",
        "evict",
        "verify",
        "watch",
        "serve",
        "check-config",
        "demo",
    ):
        assert command in everything
        assert daemon.cli(command, "--help").status == 0


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("get", "SOURCE KEY..."),
        ("exec", "SOURCE KEY... -- CMD {}..."),
        ("prefetch", "SOURCE [KEY...]"),
        ("evict", "SOURCE [KEY...]"),
        ("verify", "[SOURCE] [KEY...]"),
        ("ls", "[SOURCE]"),
        ("status", ""),
    ],
)
def test_the_usage_line_says_how_it_is_written(command: str, usage: str, daemon: Daemon) -> None:
    line = f"Usage: cachedaemon {command} [OPTIONS] {usage}".rstrip()
    assert daemon.cli(command, "--help").out.splitlines()[0] == line
    if command == "get":
        assert daemon.cli(command).err.splitlines()[0] == line


@pytest.mark.parametrize("key", ["", "../up", "a/../b", "caf\udce9", "two\nlines", "x" * 5000])
@pytest.mark.parametrize("command", ["get", "prefetch", "evict"])
def test_odd_keys_are_told_in_one_line(command: str, key: str, daemon: Daemon) -> None:
    """Empty, climbing, not UTF-8, over two lines, very long."""
    ran = daemon.cli(command, "s", key, *(["--wait"] if command == "prefetch" else []))
    _failed(ran, 1)


def test_a_prefix_that_is_not_utf8_finds_nothing(daemon: Daemon) -> None:
    assert daemon.cli("ls", "--prefix", "caf\udce9", "--json")[:2] == (0, "[]\n")


# ---- status, ls, evict


def test_status_for_people_and_for_programs(origin: Origin, daemon: Daemon) -> None:
    daemon.path("s", "img-0.bin")
    origin.put("stuck.bin", 4096, latency=30)
    daemon.prefetch("other", ["stuck.bin"])
    until(lambda: daemon.status()["fetches"], 20, "the transfer")
    said = json.loads(daemon.cli("status", "--json").out)
    assert said["cache"]["max_shards"] == 20
    assert set(said["sources"]) == {"s", "other"}
    text = daemon.cli("status").out
    assert "cap: 20" in text
    assert origin.url in text
    assert "other/stuck.bin" in text
    assert "healthy" in text


def test_ls_lists_keys_by_source_and_prefix(daemon: Daemon) -> None:
    for source, key in (("s", "img-0.bin"), ("s", "img-1.bin"), ("other", "img-2.bin"), ("s", "new\nline.bin")):
        daemon.path(source, key)
    rows = json.loads(daemon.cli("ls", "--json").out)
    found = {(row["source"], row["key"]) for row in rows}
    assert {("s", "img-0.bin"), ("other", "img-2.bin"), ("s", "new\nline.bin")} <= found
    assert [row["key"] for row in json.loads(daemon.cli("ls", "other", "--json").out)] == ["img-2.bin"]
    prefixed = json.loads(daemon.cli("ls", "s", "--prefix", "img-1", "--json").out)
    assert [row["key"] for row in prefixed] == ["img-1.bin"]
    text = daemon.cli("ls").out.splitlines()
    assert len(text) == len(rows)
    assert any(line.endswith("s/new\\nline.bin") for line in text)


def test_ls_has_a_heading_on_a_terminal_alone(daemon: Daemon) -> None:
    """What is piped are the shards and nothing else."""
    daemon.path("s", "img-0.bin")
    leader, follower = os.openpty()
    command = [COMMAND, "ls", "s", "--prefix", "img-0", "--socket", str(daemon.socket)]
    subprocess.run(command, stdout=follower, check=True)
    os.close(follower)
    heading, row = os.read(leader, 65536).decode().split("\r\n")[:2]
    os.close(leader)
    assert heading.split() == ["state", "size", "last", "used", "shard"]
    assert heading.index("shard") == row.index("s/img-0.bin")
    assert len(daemon.cli(*command[1:4], "img-0").out.splitlines()) == 1


def test_ls_of_nothing_is_an_empty_list(daemon: Daemon) -> None:
    assert json.loads(daemon.cli("ls", "--prefix", "nothing", "--json").out) == []
    assert daemon.cli("ls", "--prefix", "nothing").out == ""


def test_ls_reads_all_pages(origin: Origin) -> None:
    keys = [f"many-{number:04d}.bin" for number in range(1100)]
    for key in keys:
        origin.put(key, 1)
    with Daemon({"s": origin.url}, max_shards=2000, fetch={"concurrency": 32}) as daemon:
        assert daemon.cli("prefetch", "s", "--template", "many-{0000..1099}.bin", "--wait").status == 0
        assert [row["key"] for row in json.loads(daemon.cli("ls", "--json").out)] == keys


def test_ls_names_who_holds_a_shard(daemon: Daemon) -> None:
    """The reader is named with its command; the daemon's own grace lock is not."""
    holding = "shard = ShardCache('s').open('img-3.bin'); say(os.getpid()); hear()"
    with readers.Reader(daemon, holding) as reader:
        pid = reader.line()
        rows = json.loads(daemon.cli("ls", "s", "--prefix", "img-3", "--holders", "--json").out)
        assert [(one["pid"], one["user"]) for one in rows[0]["holders"]] == [(pid, os.geteuid())]
        assert rows[0]["leased"] is True
        assert f"({pid})" in daemon.cli("ls", "--holders").out
    rows = json.loads(daemon.cli("ls", "s", "--prefix", "img-3", "--holders", "--json").out)
    assert rows[0]["holders"] == []


def test_evict_by_name(daemon: Daemon) -> None:
    path = daemon.path("s", "img-4.bin")
    assert daemon.cli("evict", "s", "img-4.bin") == (0, "", "")
    assert not Path(path).exists()
    _failed(daemon.cli("evict", "s", "img-4.bin"), 1, "img-4.bin")


def test_evict_goes_on_behind_a_shard_that_is_in_use(daemon: Daemon) -> None:
    daemon.path("s", "img-4.bin")
    with readers.Reader(daemon, "shard = ShardCache('s').open('img-5.bin'); say(1); hear()") as reader:
        reader.line()
        _failed(daemon.cli("evict", "s", "img-5.bin", "img-4.bin"), 1, "1 of 2", "img-5.bin")
        assert [row["key"] for row in daemon.shards("s") if row["key"] in ("img-4.bin", "img-5.bin")] == ["img-5.bin"]


def test_evict_all_leaves_what_is_in_use(daemon: Daemon) -> None:
    for number in range(3):
        daemon.path("other", f"img-{number}.bin")
    with readers.Reader(daemon, "shard = ShardCache('other').open('img-1.bin'); say(1); hear()") as reader:
        reader.line()
        _failed(daemon.cli("evict", "other", "--all"), 1, "img-1.bin")
        assert [row["key"] for row in daemon.shards("other")] == ["img-1.bin"]
    until(lambda: daemon.evict("other", "img-1.bin").status == 204, 20, "the lease's end")
    assert daemon.shards("other") == []


def test_evict_all_says_how_many_went(origin: Origin) -> None:
    with Daemon({"s": origin.url}, max_shards=20, grace="100ms") as daemon:
        for count, said in ((2, "2 shards evicted\n"), (1, "1 shard evicted\n"), (0, "0 shards evicted\n")):
            for number in range(count):
                daemon.path("s", f"img-{number}.bin")
            assert daemon.cli("evict", "s", "--all") == (0, said, "")
        daemon.path("s", "img-0.bin")
        with readers.Reader(daemon, "shard = ShardCache('s').open('img-1.bin'); say(1); hear()") as reader:
            reader.line()
            ran = daemon.cli("evict", "s", "--all")
        assert (ran.status, ran.out) == (1, "1 shard evicted\n")
        assert "1 of 2 shards not evicted: s/img-1.bin" in ran.err


# ---- the process


def test_a_reader_that_goes_away_is_no_traceback(daemon: Daemon) -> None:
    daemon.path("s", "img-0.bin")
    script = f"{COMMAND} ls --json --socket {daemon.socket} | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ran.stderr
    assert ran.returncode in (0, 1)
    closed = subprocess.run(
        ["bash", "-c", f"{COMMAND} ls --json --socket {daemon.socket} >&-"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in closed.stderr


def test_a_get_whose_reader_has_enough_ends_quietly_with_1(origin: Origin, daemon: Daemon) -> None:
    """As `get ... | head -1` does."""
    origin.put("late.bin", 100, gate=(gate := Gate(50)))
    command = [COMMAND, "get", "s", "img-0.bin", "late.bin", "--socket", str(daemon.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == f"{daemon.path('s', 'img-0.bin')}\n"
        child.stdout.close()
        gate.open()
        assert (child.wait(30), child.stderr.read()) == (1, "")


def test_a_full_disk_behind_standard_output_is_told(daemon: Daemon) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [COMMAND, "status", "--socket", str(daemon.socket)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["status"], ["ls", "--json"], ["get", "s", "img-0.bin"], ["prefetch", "s", "img-0.bin"]]
)
def test_client_commands_load_nothing_heavy(words: list[str], daemon: Daemon) -> None:
    code = (
        "import sys\nfrom cachedaemon.cli import main\n"
        f"try: main({[*words, '--socket', str(daemon.socket)]!r})\n"
        f"except SystemExit as end: sys.exit(end.code or ' '.join(sorted(set(sys.modules) & set({HEAVY!r}))) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


# ---- configuration


def test_check_config_says_what_it_comes_to(daemon: Daemon, origin: Origin) -> None:
    ran = daemon.cli("check-config", "--config", str(daemon.config))
    assert (ran.status, ran.err) == (0, "")
    assert str(daemon.cache) in ran.out
    assert origin.url in ran.out


def test_check_config_tells_all_problems_in_one_line(folder: Path, daemon: Daemon) -> None:
    bad = folder / "bad.toml"
    bad.write_text('[cache]\nmax_shard = 3\npolicy = "fifo"\n[sources.s]\nurl = "gopher://x/"\n')
    for command in ("check-config", "serve"):
        _failed(daemon.cli(command, "--config", str(bad)), 1, "cache.max_shard", "cache.policy", "sources.s.url")
    _failed(daemon.cli("check-config", "--config", str(folder / "none.toml")), 1, "none.toml")


def test_serve_without_a_source_says_how_one_is_given(folder: Path, daemon: Daemon) -> None:
    ran = daemon.cli("serve", "--cache-dir", str(folder / "cache"), "--socket", str(folder / "d.sock"))
    _failed(ran, 1, "[sources.NAME]", "--source NAME=URL")


def test_serve_takes_all_from_flags(folder: Path, origin: Origin) -> None:
    path = folder / "d.sock"
    command = [
        COMMAND, "serve", "--source", f"a.b={origin.url}", "--source", f"c={origin.url}", "--cache-dir",
        str(folder / "cache"), "--max-shards", "3", "--max-bytes", "1GB", "--socket", str(path), "--http", "",
    ]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHEDAEMON_")}
    environ |= {"CACHEDAEMON_CACHE__MAX_SHARDS": "9", "CACHEDAEMON_CACHE__MIN_FREE": "1MB"}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as child:
        try:
            status = [COMMAND, "status", "--json", "--socket", str(path)]

            def answered() -> str:
                return subprocess.run(status, capture_output=True, text=True, timeout=60, check=False).stdout

            said = json.loads(until(answered, 30, "an answer"))
            assert (said["cache"]["max_shards"], said["cache"]["max_bytes"]) == (3, 10**9)
            assert set(said["sources"]) == {"a.b", "c"}
        finally:
            child.terminate()
            assert child.wait(30) == 0


def test_serve_on_a_taken_socket_fails_in_one_line(daemon: Daemon) -> None:
    ran = daemon.cli("serve", "--config", str(daemon.config))
    _failed(ran, 1, str(daemon.socket))
    assert daemon.alive
