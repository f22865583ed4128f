"""How `top` looks: lines of text for a terminal of any size, from one snapshot. The most important comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from cachedaemon.cli.words import counted, plain, size, span

_STATES = {
    "l": ("●", "blue", "leased"),
    "u": ("◆", "cyan", "fetched ahead"),
    "s": ("◇", "cyan", "wanted soon"),
    "r": ("■", "bright_black", "kept"),
    "f": ("▸", "yellow", "on its way"),
    "x": ("?", "red", "to be checked"),
    "e": ("·", "bright_black", "free"),
}
"""Sign, colour and words of each state on the map; `e`: room for a shard more."""
_BARS = " ▁▂▃▄▅▆▇█"
MOST = 600
"""Places of a cache that are drawn one by one."""
LOW = 30
"""Lines of a terminal up to which none is left empty."""
LEAST = 4
"""Lines of a list that are worth showing: its name, two rows, and how many more there are."""
FEW = 10
"""Points over which the ratio of hits is taken."""

Said = dict[str, Any]


def draw(said: Said, room: tuple[int, int], *, lost: str | None) -> list[Text]:
    """Lines for a terminal of so many columns and lines, none longer and no more. `lost`: why the daemon does not answer."""
    width, height = room
    lines = [*_heading(said, lost), *_figures(said, width), Text()]
    lines += _map(said, width, max(2, (height - len(lines)) // 5))
    parts = [part for part in (_transfers(said), _sources(said), _plans(said), _to_come(said)) if len(part) > 1]
    lines += _fitted(parts, height - len(lines), gap=int(height > LOW))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[:height]


def _fitted(parts: list[list[Text]], room: int, gap: int) -> list[Text]:
    """As many of these as have room for a few rows each, the first ones first; `gap`: empty lines before each."""
    while parts:
        shares = _shares([gap + len(part) for part in parts], room)
        if all(share >= min(gap + len(part), gap + LEAST) for share, part in zip(shares, parts, strict=True)):
            return [
                line
                for part, share in zip(parts, shares, strict=True)
                for line in [*[Text()] * gap, *_cut(part, share - gap)]
            ]
        parts = parts[:-1]
    return []


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """How many lines each part gets: what it wants, or an even part of what is left."""
    given = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    for done, number in enumerate(order):
        given[number] = min(wanted[number], room // (len(wanted) - done))
        room -= given[number]
    return given


def _cut(part: list[Text], most: int) -> list[Text]:
    if len(part) <= most:
        return part
    return [*part[: most - 1], Text(f"  and {len(part) - most + 1} more", "bright_black")]


def _heading(said: Said, lost: str | None) -> list[Text]:
    wrong = "; ".join(f"{area}: {why}" for area, why in said["health"].items())
    line = Text.assemble(
        ("cachedaemon ", "bold"), f"{plain(said['host'])}  {said['version']}  up {span(said['uptime'])}  "
    )
    line.append(plain(wrong) or "healthy", "bold red" if wrong else "green")
    return [line, Text(f"{plain(lost)}; looking again", "bold red")] if lost else [line]


def _figures(said: Said, width: int) -> Iterator[Text]:
    cache, disk = said["cache"], said["cache"]["disk"]
    of = f" of {cache['max_shards']}" if cache["max_shards"] else ""
    of_bytes = f" of {size(cache['max_bytes'])}" if cache["max_bytes"] else ""
    free = f", {size(disk['free'])} free" if disk else ""
    full = ", FULL: all leased or in transfer" if cache["full"] else ""
    yield Text(
        f"shards   {cache['shards']}{of}, {cache['leased']} leased, {size(cache['bytes'])}{of_bytes}{free}{full}"
    )
    points, columns = said["points"], max(10, min(60, width - 44))
    asked, hits = (sum(point[name] for point in points[-30:]) for name in ("asked", "hits"))
    rate = sum(source["rate"] for source in said["sources"])
    wait = said["mean_wait"]
    regret = cache["regret"]
    yield _plot("hits", f"{hits / asked:.1%} of {asked}" if asked else "nobody asks", _ratios(points), columns, top=1.0)
    waits = f"{said['waiters']}, of late {wait:.2f} s each" if wait is not None else f"{said['waiters']}"
    yield _plot("waiting", waits, [point["waiters"] for point in points], columns, top=4.0)
    rates = [point["bytes"] / max(point["seconds"], 0.1) for point in points]
    yield _plot("coming", f"{size(rate)}/s", rates, columns, top=1000.0)
    regrets = [None if point["regret"] is None else point["regret"] - 1 for point in points]
    yield _plot("regret", f"{regret:.2f}" if regret is not None else "no plan has ended", regrets, columns, top=0.2)


def _ratios(points: Sequence[Said]) -> list[float | None]:
    found: list[float | None] = []
    for end in range(1, len(points) + 1):
        window = points[max(0, end - FEW) : end]
        asked = sum(point["asked"] for point in window)
        found.append(sum(point["hits"] for point in window) / asked if asked else None)
    return found


def _plot(name: str, now: str, values: Sequence[float | None], columns: int, *, top: float) -> Text:
    """A line: name, the value of now, and the latest values as small bars; `top` is the least that a full bar stands for."""
    latest = values[-columns:]
    most = max([top, *(value for value in latest if value is not None)])
    bars = "".join(" " if value is None else _BARS[max(1, round(value / most * (len(_BARS) - 1)))] for value in latest)
    return Text.assemble(f"{name:<9}", f"{now:<32} ", (bars, "blue"))


def _map(said: Said, width: int, most: int) -> list[Text]:
    """The shards as signs, with a legend of what occurs; in a cache that is too large for it, groups of them."""
    signs = _signs(said)
    each = -(-len(signs) // (most * width))
    chosen = [min(signs[at : at + each], key="xlufsre".index) for at in range(0, len(signs), each)] if each else []
    lines = []
    for start in range(0, len(chosen), width):
        line = Text()
        for state in chosen[start : start + width]:
            line.append(*_STATES[state][:2])
        lines.append(line)
    legend = Text()
    for state, (sign, colour, words) in _STATES.items():
        if state in chosen:
            legend.append(f"{sign} ", colour).append(f"{words}  ")
    group = each * int(said["map"]["each"])
    if group > 1:
        legend.append(f"(a sign: {group} shards)", "bright_black")
    return [*lines, legend]


def _signs(said: Said) -> str:
    cells = said["map"]
    if cells["each"] > 1:
        return "".join(map(_sign_of, cells["groups"]))
    here: list[str] = [row[2] for row in cells["shards"]]
    coming = sum(bool(one["room"]) for one in said["transfers"])
    free = min(int(said["cache"]["max_shards"]), MOST) - len(here) - coming
    return "".join(here) + "f" * coming + "e" * max(0, free)


def _sign_of(group: Sequence[int]) -> str:
    """The most telling state of a group: the counts are of all, leased, fetched ahead, wanted soon, to be checked."""
    _, *counts = group
    return next((state for state in "xlus" if counts["lusx".index(state)]), "r")


def _title(said: str) -> Text:
    return Text(said, "bold")


def _transfers(said: Said) -> list[Text]:
    rows = []
    for one in said["transfers"]:
        part = one["bytes"] / one["size"] if one["size"] else 0.0
        state = f"{part:4.0%}" if one["state"] == "coming" and one["size"] else one["state"]
        waits = f", {one['waiters']} waiting" if one["waiters"] else ""
        of = f" of {size(one['size'])}" if one["size"] else ""
        much = f"{size(one['bytes'])}{of}"
        row = Text("  ").append("█" * round(part * 10), "yellow").append("░" * (10 - round(part * 10)), "bright_black")
        rows.append(row.append(f" {state:<8} {much:<19}  {_name(one)}  (a {one['for']}{waits})"))
    return [_title(f"on their way ({said['transfers_in_all']})"), *rows]


def _plans(said: Said) -> list[Text]:
    rows = []
    for one in said["plans"]:
        pace = f"{one['pace']:.2g} a second, " if one["pace"] else ""
        place = f"{one['position']} of {one['keys']}, {pace}{one['ready']} ready ahead, {one['state']}"
        rows.append(Text(f"  {place}  {one['source']}  {one['id']}"))
    return [_title(f"plans ({said['plans_in_all']})"), *rows]


def _sources(said: Said) -> list[Text]:
    return [_title("sources"), *(_source(one, said["health"].get(f"source {one['name']}")) for one in said["sources"])]


def _source(one: Said, wrong: str | None) -> Text:
    slowed = one["connections"] < one["most_connections"]
    links = f"{one['connections']} of {one['most_connections']}" if slowed else f"{one['connections']}"
    line = Text(f"  {one['name']}: {counted(one['shards'], 'shard')}, {size(one['bytes'])}, {size(one['rate'])}/s, ")
    line.append(f"{links} connections, {one['waiters']} waiting")
    if one["failures"]:
        line.append(f", {counted(one['failures'], 'failure')} in a minute", "red")
    return line.append(f", {plain(wrong)}", "red") if wrong else line


def _to_come(said: Said) -> list[Text]:
    rows = [Text(f"  in {span(one['in'])}  {_name(one)}") for one in said["to_come"]]
    return [_title("wanted next and not here"), *rows]


def _name(one: Said) -> str:
    return plain(f"{one['source']}/{one['key']}")
