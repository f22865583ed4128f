"""Keys and their names: distinct, spelled the same for ever, and never outside their folder."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachedaemon_client.names import LONGEST, TAIL, is_shortened, is_source, key_of, name_of

UNICODE = st.characters(exclude_categories=["Cs"])
KEYS = st.one_of(
    st.text(UNICODE, min_size=1, max_size=300),
    st.text(st.sampled_from("aA.%/~-_2E \0é\n"), min_size=1, max_size=260),
    st.builds(lambda head, body: head + body, st.sampled_from([".", "..", "../", "%", "%~", "/"]), st.text(UNICODE)),
)
SEGMENT = re.compile(r"(%~[0-9a-f]{32}-)?([A-Za-z0-9._-]|%[0-9A-F]{2})*\Z")


@given(KEYS)
@example("." * 200)
@example("a" * 199 + "é")
def test_a_name_is_one_visible_segment(key: str) -> None:
    name = name_of(key)
    assert SEGMENT.match(name)
    assert name[0] != "."
    assert 1 <= len(name.encode()) <= LONGEST


@given(KEYS, KEYS)
@example("a/b", "a%2Fb")
@example(".a", "%2Ea")
@example("é", "e\u0301")
@example("x" * 201, "y" + "x" * 200)
@example("A.zip", "a.zip")
def test_different_keys_have_different_names(one: str, other: str) -> None:
    assert (name_of(one) == name_of(other)) == (one == other)


@given(KEYS)
def test_a_name_tells_its_key_unless_it_is_shortened(key: str) -> None:
    name = name_of(key)
    assert key_of(name) == (None if is_shortened(name) else key)
    assert is_shortened(name) == name.startswith("%~")


@given(st.one_of(st.text(max_size=260), st.text(st.sampled_from("aZ.%~2F0eE-_/"), max_size=230)))
def test_only_names_are_read_as_names(text: str) -> None:
    """What lies in the folder and is no name of ours is not taken for a key's."""
    key = key_of(text)
    assert key is None or name_of(key) == text


@given(st.text(UNICODE, min_size=70, max_size=300))
@example("%" * 100)
@example("a" + "%" * 99)
@example("é" * 100)
@example("." + "a" * 199)
def test_a_shortened_name_ends_at_a_whole_escape(key: str) -> None:
    spelled = "".join(chr(b) if re.match(rb"[A-Za-z0-9._-]", bytes([b])) else f"%{b:02X}" for b in key.encode())
    spelled = "%2E" + spelled[1:] if spelled[0] == "." else spelled
    name = name_of(key)
    if len(spelled) <= LONGEST:
        assert name == spelled
        return
    digest, _, tail = name[2:].partition("-")
    assert digest == hashlib.sha256(key.encode()).hexdigest()[:32]
    assert spelled.endswith(tail)
    assert TAIL - 2 <= len(tail) <= TAIL
    assert re.match(r"([A-Za-z0-9._-]|%[0-9A-F]{2})*\Z", tail), "an escape was cut"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("images-17.zip", "images-17.zip"),
        (".hidden", "%2Ehidden"),
        ("..", "%2E."),
        ("a/../b", "a%2F..%2Fb"),
        ("a b%c", "a%20b%25c"),
        ("Größe_1.tar", "Gr%C3%B6%C3%9Fe_1.tar"),
        ("\0", "%00"),
        ("~", "%7E"),
        ("%~", "%25%7E"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "%~84a0678c90937f5dcf9994d5866668da-" + "x" * 160),
        ("/" * 67, "%~3eb1349aab9dc074e2028d6801ffe27e-" + "%2F" * 53),
    ],
)
def test_names_never_change(key: str, name: str) -> None:
    """Golden values: what is on disk stays readable."""
    assert name_of(key) == name


@pytest.mark.parametrize("key", ["", "\ud800", "a\udfffb"])
def test_a_key_that_cannot_be_named_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"empty|not valid Unicode"):
        name_of(key)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        *((name, True) for name in ("imagenet", "0a", "a.b_c-d")),
        *((name, False) for name in ("", ".a", "-a", "_a", "A", "a/b", "a\n", "é", "..")),
    ],
)
def test_source_names(name: str, *, good: bool) -> None:
    assert is_source(name) is good
