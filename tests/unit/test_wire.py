"""Requests as they go out, answers as they come in."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachedaemon_client.wire import HEAD_LIMIT, Answer, request

BODY = b'{"path": "/c/shards/s/a"}'
WHOLE = b"HTTP/1.1 200 OK\r\nCachedaemon-Generation: g1\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


def test_a_request_announces_its_body() -> None:
    head, _, body = request("POST", "/v1/touch", {"used": ["ü"]}).partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /v1/touch HTTP/1.1"
    assert b"Content-Length: %d" % len(body) in head
    assert json.loads(body) == {"used": ["ü"]}
    assert request("GET", "/v1/hello") == b"GET /v1/hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


@given(st.lists(st.integers(1, len(WHOLE) - 1)))
def test_an_answer_may_come_in_any_pieces(cuts: list[int]) -> None:
    answer, places = Answer(), [0, *sorted(cuts), len(WHOLE)]
    for start, stop in pairwise(places):
        assert not answer.done
        assert answer.wanted > 0
        answer.feed(WHOLE[start:stop])
        if answer.done:
            break
    assert answer.done
    assert answer.status == 200
    assert answer.headers["cachedaemon-generation"] == "g1"
    assert answer.json() == json.loads(BODY)


def test_no_more_is_read_than_belongs_to_the_answer() -> None:
    answer = Answer()
    answer.feed(WHOLE[:-5])
    assert answer.wanted == 5


def test_an_answer_without_a_body() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert answer.done
    assert answer.json() is None


@pytest.mark.parametrize(
    "piece",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\r\n\r\n",
        b"x" * (HEAD_LIMIT + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(piece: bytes) -> None:
    with pytest.raises(ValueError, match=r"HTTP|head|int"):
        Answer().feed(piece)


def test_a_body_that_is_no_json_is_refused() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<a>")
    with pytest.raises(ValueError, match="Expecting value"):
        answer.json()
