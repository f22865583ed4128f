"""Ranges in braces, as bash expands them: `images-{000..999}.zip`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

_RANGE = re.compile(r"\{(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(-?\d{1,18}))?\}", re.ASCII)
MOST = 10_000_000
"""Keys of a template: more do not go into one request."""


def expand(template: str) -> Iterator[str]:
    """All keys of a template; the last range turns fastest. A template without a range is one key.

    ValueError for braces that are no range, which would hardly be meant as a part of the key, and for more than `MOST` keys.
    """
    if re.search("[{}]", _RANGE.sub("", template)):
        msg = (
            "braces that are no range of whole numbers; allowed are {FIRST..LAST} and {FIRST..LAST..STEP} "
            "(a key that has braces is given as KEY)"
        )
        raise ValueError(msg)
    if (count := math.prod(len(_range(*found.groups())) for found in _RANGE.finditer(template))) > MOST:
        msg = f"these are {count} keys; allowed are {MOST}"
        raise ValueError(msg)
    return _expanded(template)


def _expanded(template: str) -> Iterator[str]:
    pieces: list[list[str] | Iterator[str]] = []
    end = 0
    for found in _RANGE.finditer(template):
        pieces += [[template[end : found.start()]], _numbers(*found.groups())]
        end = found.end()
    for parts in itertools.product(*pieces, [template[end:]]):
        yield "".join(parts)


def _numbers(first: str, last: str, step: str | None) -> Iterator[str]:
    """Up or down, whatever the step's sign; padded with zeros when one of the ends is."""
    width = max(len(first), len(last)) if _is_padded(first) or _is_padded(last) else 0
    return (f"{number:0{width}d}" for number in _range(first, last, step))


def _range(first: str, last: str, step: str | None) -> range:
    start, stop = int(first), int(last)
    by = abs(int(step or 1)) or 1
    return range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)


def _is_padded(number: str) -> bool:
    return re.match(r"-?0\d", number) is not None
