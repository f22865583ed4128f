"""What the command line does without a daemon: templates, sizes, columns, streams of events."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon.cli import programs, words
from cachedaemon.cli.app import run
from cachedaemon.cli.bars import Bar
from cachedaemon.cli.coming import Coming, coming
from cachedaemon.cli.drawn import drawn
from cachedaemon.cli.stream import parsed
from cachedaemon.cli.templates import expand

TEMPLATES = [
    "images-{0..12}.zip",
    "images-{000..012}.zip",
    "images-{8..011}.zip",
    "a{3..1}b",
    "{-2..2}",
    "{-01..1}",
    "{1..-03}",
    "{0..10..3}",
    "{10..0..3}",
    "{10..0..-4}",
    "{0..4..0}",
    "x{1..2}y{01..03}z{5..4}",
    "{7..7}",
    "{007..7}",
    "{0..0}",
    "{00..1}",
    "{-0..1}",
    "plain.zip",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_what_bash_makes_of_them(template: str) -> None:
    ran = subprocess.run(["bash", "-c", f"printf '%s\\n' {template}"], capture_output=True, text=True, check=True)
    assert list(expand(template)) == ran.stdout.splitlines()


@pytest.mark.parametrize(
    "template",
    [
        "{a..b}",
        "{1..}",
        "{1.2}",
        "{1..2",
        "x{1..",
        "{}",
        "{1..2..}",
        "{1..2..x}",
        "{a,b}",
        "{{1..2}}",
        "{1..2}}",
        "k{0..1}{",
    ],
)
def test_braces_that_are_no_range_are_refused_with_what_is_allowed(template: str) -> None:
    with pytest.raises(ValueError, match=r"allowed are \{FIRST\.\.LAST\} and \{FIRST\.\.LAST\.\.STEP\}"):
        expand(template)


@pytest.mark.parametrize(
    "template", ["{0..99999999999}", "{0..9999}{1..1001}", "{-999999999999999999..999999999999999999}"]
)
def test_a_template_of_too_many_keys_is_refused_before_it_fills_the_memory(template: str) -> None:
    with pytest.raises(ValueError, match="allowed are 10000000"):
        expand(template)


def test_a_huge_range_is_made_as_it_is_used() -> None:
    assert list(itertools.islice(expand("k{0..999999}"), 2)) == ["k0", "k1"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9_994, "9.99 kB"), (9_996, "10.0 kB"), (99_960, "100 kB"),
        (999_499, "999 kB"), (999_500, "1.00 MB"), (123_456_789, "123 MB"), (1.5e18, "1500 PB"),
    ],
)  # fmt: skip
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (59.6, "1 m"), (61, "1 m 1 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_spans_have_two_units(seconds: float, text: str) -> None:
    assert words.span(seconds) == text


@given(st.text())
def test_names_stay_on_their_line(text: str) -> None:
    assert words.plain(text).isprintable()


@pytest.mark.parametrize(("count", "text"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards")])
def test_numbers_of_things(count: int, text: str) -> None:
    assert words.counted(count, "shard") == text


def _fetch(key: str, got: int, of: int | None, source: str = "s") -> dict[str, object]:
    return {"source": source, "key": key, "bytes": got, "size": of}


@pytest.mark.parametrize(
    ("fetches", "comes"),
    [
        ([], Coming(0, 0.0, unsized=False)),
        ([_fetch("a", 50, 100), _fetch("b", 25, 100)], Coming(75, 0.75, unsized=False)),
        ([_fetch("a", 50, 100), _fetch("else", 50, 100), _fetch("a", 1, 2, "t")], Coming(50, 0.5, unsized=False)),
        ([_fetch("a", 100, 100)], Coming(100, 0.99, unsized=False)),
        ([_fetch("a", 0, None)], Coming(0, 0.0, unsized=False)),
        ([_fetch("a", 7, None)], Coming(7, 0.0, unsized=True)),
        ([_fetch("a", 7, None), _fetch("b", 50, 100)], Coming(57, 0.5, unsized=False)),
    ],
)
def test_what_is_on_its_way(fetches: list[dict[str, object]], comes: Coming) -> None:
    assert coming(fetches, "s", {"a", "b"}) == comes
    assert coming([_fetch("x", 1, 2)], "s", None) == Coming(1, 0.5, unsized=False)


def test_a_bar_moves_with_the_bytes_and_never_backwards() -> None:
    progress = drawn()
    bar = Bar(progress, progress.add_task("", total=2, note="", pulsing=False))
    task = progress.tasks[0]
    seen = []
    for step in (
        lambda: bar.coming(Coming(500, 0.5)),
        lambda: bar.coming(Coming(900, 0.9)),
        lambda: bar.coming(
            Coming(0, 0.0)
        ),  # the second has come before the first: it is neither on its way nor counted
        lambda: bar.done(1000),
        lambda: bar.coming(Coming(300, 0.0, unsized=True)),
        lambda: bar.done(1000),
    ):
        step()
        seen.append((task.completed, task.fields["note"], task.fields["pulsing"]))
    assert [shards for shards, _, _ in seen] == [0.5, 0.9, 0.9, 1, 1, 2]
    assert seen[4] == (1, "1.30 kB", True)
    assert seen[5] == (2, "2.00 kB", False)


def test_columns_align() -> None:
    assert words.columns([["a", "1"], ["bcd", "22"]], right=frozenset({1})) == ["a     1", "bcd  22"]
    assert words.columns([]) == []


def test_places_are_filled() -> None:
    assert programs.Template(["x", "{}", "y"])(["1", "2"]) == ["x", "1", "2", "y"]
    assert programs.Template(["{}", "{}"])(["1", "2"]) == ["1", "2"]


def test_events_are_read_as_the_standard_says() -> None:
    lines = [
        b": from now on\n", b"\n", b"event: ready\r\n", b'data: {"source": "s",\r\n', b'data: "key": "k"}\r\n', b"\r\n",
        b": alive\n", b"\n", b'data:{"x": 1}\n', b"\n", b"event: ready\n", b'data: {"cut": true}\n',
    ]  # fmt: skip
    assert list(parsed(lines)) == [{"event": "ready", "source": "s", "key": "k"}, {"event": "message", "x": 1}]


@pytest.mark.parametrize("words", [["get", "s", "k"], ["exec", "s", "k", "--", "true", "{}"], ["status"]])
def test_an_error_gives_a_terminal_no_orders(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What it names may be of others' choosing, as keys are that an origin lists."""
    with pytest.raises(SystemExit):
        run([words[0], "--socket", "/none\x1b]0;owned\x07", *words[1:]])
    said = capsys.readouterr().err
    assert "/none\\x1b]0;owned\\x07" in said
    assert said.rstrip("\n").isprintable()
