"""The client across fork, spawn, forkserver, exec: each process has its own connections, leases and plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes import readers
from tests.fakes.daemon import Daemon
from tests.fakes.origin import Origin
from tests.fakes.waiting import until

KEYS = [f"shard-{number}.bin" for number in range(6)]
FILTER = "import warnings\nwarnings.filterwarnings('ignore', 'This process .* is multi-threaded')\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Origin() as origin:
        for key in KEYS:
            origin.put(key, 5000)
        origin.put("never.bin", 5000, latency=30)
        with Daemon({"s": origin.url}, max_shards=10) as one:
            for key in KEYS:
                one.path("s", key)
            yield one


WORKERS = (
    FILTER
    + """
import multiprocessing

def sockets():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + number)
        except FileNotFoundError:
            continue
        found |= {link} if link.startswith("socket:") else set()
    return found

def work(cache, keys, answers, parents):
    inherited = sockets() & parents
    cache.status()
    sizes = []
    for key in keys:
        with cache.open(key) as shard:
            sizes.append(shard.size)
    asked = cache.acquire(keys[0])
    asked.close()
    answers.put([sizes, len(inherited)])

def use(cache, stop, keys):
    while not stop.is_set():
        cache.status()
        for key in keys:
            cache.open(key).close()

if __name__ == "__main__":
    cache, stop, before = ShardCache("s", wait=30), threading.Event(), sockets()
    cache.open(ARG["keys"][0]).close()
    cache.acquire(ARG["keys"][0]).close()
    thread = threading.Thread(target=use, args=(cache, stop, ARG["keys"]))
    thread.start()
    context = multiprocessing.get_context(ARG["start"])
    for _ in range(ARG["rounds"]):
        answers = context.SimpleQueue()
        own = sockets() - before
        parents = own if ARG["start"] == "fork" else set()
        workers = [context.Process(target=work, args=(cache, ARG["keys"], answers, parents)) for _ in range(4)]
        for worker in workers:
            worker.start()
        said = [answers.get() for _ in workers]
        for worker in workers:
            worker.join()
        say([said, [worker.exitcode for worker in workers]])
        answers.close()
    stop.set()
    thread.join()
    cache.close()
"""
)


def workers(daemon: Daemon, start: str, rounds: int, seconds: float) -> None:
    said = readers.run(daemon, WORKERS, {"keys": KEYS, "start": start, "rounds": rounds}, seconds=seconds)
    assert said == [[[[[5000] * len(KEYS), 0]] * 4, [0] * 4]] * rounds


@pytest.mark.parametrize(("start", "rounds"), [("fork", 20), ("spawn", 1), ("forkserver", 2)])
def test_a_client_made_before_works_in_each_worker(daemon: Daemon, start: str, rounds: int) -> None:
    """While a thread of the parent goes on using it (C-58)."""
    workers(daemon, start, rounds, 50)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_200_forks_while_a_thread_uses_the_client(daemon: Daemon) -> None:
    """No hang (C-58)."""
    workers(daemon, "fork", 200, 280)


def test_a_client_imports_nothing_while_it_works(daemon: Daemon) -> None:
    """Not even a codec: a child that is forked in the middle of a thread's import waits for that import's lock for ever."""
    snippet = (
        FILTER
        + """
before = set(sys.modules)
with ShardCache("s", wait=30) as cache, cache.plan(ARG) as plan:
    for shard in plan: shard.path
    with cache.open(ARG[0]): pass
    cache.prefetch(ARG).wait()
    for shard in cache.as_ready(ARG): pass
    cache.status()
say(sorted(set(sys.modules) - before))
"""
    )
    with readers.Reader(daemon, snippet, KEYS[:3]) as reader:
        assert reader.line(60) == []


def test_hundreds_of_children_keep_no_lease(daemon: Daemon) -> None:
    """Forked while two threads open shards; they outlive the parent's closes, and evicting finds nothing leased."""
    snippet = (
        FILTER
        + """
cache, stop = ShardCache("s", wait=30), threading.Event()
def use():
    while not stop.is_set():
        for key in ARG:
            with cache.open(key) as shard:
                if len(open(shard.path, "rb").read()) != 5000: say("wrong")
threads = [threading.Thread(target=use) for _ in range(2)]
for thread in threads: thread.start()
alive, end = os.pipe()
children = []
for _ in range(200):
    if (pid := os.fork()) == 0:
        os.close(end)
        cache.open(ARG[0]).close()
        os.read(alive, 1)
        os._exit(0)
    children.append(pid)
stop.set()
for thread in threads: thread.join()
say("closed")
hear()
os.close(end)
say([os.waitpid(pid, 0)[1] for pid in children] == [0] * 200)
"""
    )
    with readers.Reader(daemon, snippet, KEYS[:3]) as reader:
        assert reader.line(60) == "closed"
        for key in KEYS[:3]:
            until(lambda key=key: daemon.evict("s", key).status == 204, 20, f"no lease on {key}")
        reader.tell()
        assert reader.line() is True
    for key in KEYS[:3]:
        daemon.path("s", key)


def test_what_a_child_does_leaves_the_parent_s_lease(daemon: Daemon) -> None:
    """Its hits, closes, garbage and end; in a thread's fork, in a program that is started, in one that is exec'ed."""
    snippet = (
        FILTER
        + """
import subprocess
cache = ShardCache("s", wait=30)
shard = cache.open(ARG)
def child():
    if (pid := os.fork()) == 0:
        try:
            assert shard.closed
            with cache.open(ARG) as own: assert own.size == 5000
            shard.close()
            cache.close()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return os.waitpid(pid, 0)[1]
say(child())
thread = threading.Thread(target=lambda: say(child()))
thread.start(); thread.join()
say(subprocess.run([sys.executable, "-c", "import os; print(os.listdir('/proc/self/fd'))"], stdout=subprocess.DEVNULL).returncode)
if (pid := os.fork()) == 0:
    os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])
say(shard.closed)
hear()
shard.close()
say("closed")
hear()
os.kill(pid, 9); os.waitpid(pid, 0)
"""
    )
    with readers.Reader(daemon, snippet, KEYS[0]) as reader:
        assert [reader.line() for _ in range(4)] == [0, 0, 0, False]
        assert daemon.evict("s", KEYS[0]).code == "leased"
        reader.tell()
        assert reader.line() == "closed"
        assert daemon.evict("s", KEYS[0]).status == 204, "the exec'ed program has no copy"
        reader.tell()
        assert reader.rest() == []
    daemon.path("s", KEYS[0])


def test_a_child_of_a_library_s_fork(daemon: Daemon) -> None:
    """fork(2) that Python does not know of: the child asks on a connection of its own, and unlocks nothing."""
    snippet = """
import ctypes
cache = ShardCache("s", wait=30)
shard = cache.open(ARG)
cache.status()
pid = ctypes.PyDLL(None).fork()
if pid == 0:
    try:
        cache.open(ARG).close()
        cache.status()
        cache.acquire(ARG).close()
        shard.close()
        cache.close()
        os.write(1, b'"child"\\n')
    finally:
        os._exit(0)
os.waitpid(pid, 0)
for _ in range(20): cache.status()
say(shard.closed)
hear()
shard.close()
cache.close()
say("closed")
"""
    with readers.Reader(daemon, snippet, KEYS[1]) as reader:
        assert [reader.line(), reader.line()] == ["child", False]
        assert daemon.evict("s", KEYS[1]).code == "leased"
        reader.tell()
        assert reader.rest() == ["closed"]
    assert daemon.evict("s", KEYS[1]).status == 204
    daemon.path("s", KEYS[1])


def test_members_are_closed_in_a_child(daemon: Daemon) -> None:
    """Its numbers of descriptors may be other files': reading fails in words, not with another file's bytes."""
    snippet = """
shard = ShardCache("s", wait=30).open(ARG)
if (pid := os.fork()) == 0:
    try:
        shard.members
    except ValueError as cause:
        say(str(cause))
    os._exit(0)
os.waitpid(pid, 0)
shard.close()
"""
    (said,) = readers.run(daemon, snippet, KEYS[0])
    assert "opened by the process that forked this one" in said


def test_a_plan_belongs_to_the_process_that_made_it(daemon: Daemon) -> None:
    """In a forked child it is inert: it yields shards and tells nobody; the child's end does not end it."""
    snippet = """
cache = ShardCache("s", wait=30)
with cache.plan(ARG, holds=2) as plan:
    first = cache.open(ARG[0])
    cache._reporter.flush()
    if (pid := os.fork()) == 0:
        with plan:
            say([shard.key for shard in plan])
            cache.close()
        os._exit(0)
    os.waitpid(pid, 0)
    say(plan.position)
    hear()
    first.close()
    say([shard.key for shard in plan])
cache.close()
"""
    with readers.Reader(daemon, snippet, KEYS[:4]) as reader:
        assert [reader.line(), reader.line()] == [KEYS[1:4], 1]
        (plan,) = daemon.status()["plans"]
        assert (plan["keys"], plan["position"]) == (4, 1)
        reader.tell()
        assert reader.rest() == [KEYS[1:4]]
    assert not daemon.status()["plans"]


CONTEXTS = """
import multiprocessing
def work(number, keys, answers):
    with ShardCache("s", wait=30) as cache:
        mine = keys[number :: ARG["workers"]]
        answers.put([shard.key for shard in cache.as_ready(mine)] if mine else [])
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    workers = [context.Process(target=work, args=(n, ARG["keys"], answers)) for n in range(ARG["workers"])]
    for worker in workers: worker.start()
    say(sorted(key for _ in workers for key in answers.get()))
    for worker in workers: worker.join()
    say([worker.exitcode for worker in workers])
"""


@pytest.mark.parametrize("shards", [3, 0])
def test_more_workers_than_shards(daemon: Daemon, shards: int) -> None:
    """Those without a shard end cleanly (C-61)."""
    said = readers.run(daemon, CONTEXTS, {"keys": KEYS[:shards], "workers": 5})
    assert said == [KEYS[:shards], [0] * 5]


FORK = """
import asyncio, warnings
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
from cachedaemon_client import aio
if ARG["loop"] == "uvloop":
    import uvloop
    loops = {"loop_factory": uvloop.new_event_loop}
else:
    loops = {}

async def child(cache):
    async with cache.open(ARG["key"]) as shard:
        size = shard.size
    await cache.status()
    await cache.close()
    return size

async def parent(cache):
    held = await cache.open(ARG["key"])
    await asyncio.gather(*(cache.status() for _ in range(3)))
    waiting = asyncio.create_task(cache.open("never.bin")._begin())
    await asyncio.sleep(0.1)
    own = {os.readlink(f"/proc/self/fd/{n}") for n in ("%d" % link._socket.fileno() for link in cache._links)}
    if (pid := os.fork()) == 0:
        os._exit(leave(cache, own))
    await cache.status()
    assert os.waitpid(pid, 0)[1] == 0
    say(held.closed)
    await cache.status()
    waiting.cancel()
    held.close()
    await cache.close()

def leave(cache, own):
    mine = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink("/proc/self/fd/" + number))
        except FileNotFoundError:
            pass
    say([len(own) > 1, len(own & mine)])
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    say(loop.run_until_complete(child(cache)))
    return 0

with asyncio.Runner(**loops) as runner:
    runner.run(parent(aio.ShardCache("s", wait=30)))
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_child_of_a_running_loop(daemon: Daemon, loop: str) -> None:
    """It has none of the parent's connections, those that wait included, and the parent's go on."""
    said = readers.run(daemon, FORK, {"key": KEYS[0], "loop": loop})
    assert said == [[True, 0], 5000, False]
