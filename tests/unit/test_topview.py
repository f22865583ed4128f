"""What `top` draws fits every terminal, and says the most important first."""

from __future__ import annotations

from typing import Any

import pytest

from cachedaemon.cli.topview import draw


def transfer(number: int, **more: Any) -> dict[str, Any]:
    return {
        "source": "s",
        "key": f"train/images-{number:04d}.zip",
        "bytes": 1_000_000,
        "size": 3_000_000,
        "for": "plan",
        "waiters": 0,
        "room": True,
        "state": "coming",
    } | more


def snapshot(**more: Any) -> dict[str, Any]:
    """A busy node."""
    cache = {"shards": 17, "max_shards": 24, "leased": 2, "bytes": 5e7, "max_bytes": 0, "full": None, "regret": 2.05}
    source = {"shards": 17, "bytes": 5e7, "rate": 1e7, "connections": 8, "most_connections": 8, "waiters": 0}
    plan = {"source": "s", "keys": 48, "position": 20, "state": "running", "pace": 2.1, "ready": 4}
    point = {"seconds": 2, "asked": 5, "hits": 4, "bytes": 10**6, "waiters": 1, "regret": None}
    return {
        "host": "node17",
        "version": "0.1.0",
        "uptime": 325,
        "health": {},
        "cache": cache | {"disk": {"free": 7e10, "total": 1e11, "kept": 1}},
        "points": [point] * 40,
        "waiters": 1,
        "mean_wait": 2.78,
        "transfers": [transfer(1, waiters=3, **{"for": "reader"}), *(transfer(number) for number in range(2, 20))],
        "transfers_in_all": 200,
        "plans": [plan | {"id": f"plan-{number}"} for number in range(5)],
        "plans_in_all": 5,
        "to_come": [{"source": "s", "key": f"k{number}", "in": 4.0 + number} for number in range(20)],
        "sources": [source | {"name": "s", "failures": 2}, source | {"name": "t", "failures": 0, "connections": 3}],
        "map": {"each": 1, "shards": [["s", "k", "lusrx"[number % 5], 1] for number in range(17)]},
    } | more


def shown(said: dict[str, Any], columns: int, lines: int, lost: str | None = None) -> list[str]:
    return [line.plain for line in draw(said, (columns, lines), lost=lost)]


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (60, 15), (80, 24), (132, 43), (200, 50), (400, 200)])
@pytest.mark.parametrize("shards", [0, 17, 600])
def test_it_fits(columns: int, lines: int, shards: int) -> None:
    said = snapshot(map={"each": 1, "shards": [["s", "k", "r", 1]] * shards})
    drawn = draw(said, (columns, lines), lost=None)
    assert len(drawn) <= lines
    assert all(line.cell_len <= columns for line in drawn)
    assert drawn[0].plain.startswith("cachedaemon")


def test_groups_of_a_large_cache() -> None:
    said = snapshot(
        map={"each": 250, "groups": [[250, 0, 0, 0, 0], [250, 1, 9, 0, 0], [250, 0, 1, 0, 0]]}, transfers=[]
    )
    drawn = shown(said, 80, 24)
    assert "■●◆" in drawn
    assert any("(a sign: 250 shards)" in line for line in drawn)


def test_what_is_cut_off_is_counted() -> None:
    drawn = shown(snapshot(), 100, 24)
    place = next(number for number, line in enumerate(drawn) if line.startswith("on their way (200)"))
    rows = [line for line in drawn[place + 1 :] if line.startswith("  █")]
    assert "s/train/images-0001.zip  (a reader, 3 waiting)" in rows[0]
    assert f"  and {19 - len(rows)} more" in drawn


def test_what_is_wrong_is_said() -> None:
    drawn = shown(snapshot(health={"source t": "it does\x1b not answer"}), 200, 50)
    assert drawn[0].endswith("source t: it does\\x1b not answer")
    assert any(line.startswith("  s: ") and "2 failures in a minute" in line for line in drawn)
    assert any(line.startswith("  t: ") and "3 of 8 connections" in line for line in drawn)
    assert shown(snapshot(), 80, 24, lost="no daemon at /x")[1] == "no daemon at /x; looking again"
