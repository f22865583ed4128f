"""Numbers and names as people read them."""

from __future__ import annotations

_UNITS = ("kB", "MB", "GB", "TB", "PB")


def size(count: float) -> str:
    """Bytes in decimal units, three digits: `1.23 GB`."""
    if count < 1000:
        return f"{count:.0f} B"
    power = 0
    while count >= 999.5 and power < len(_UNITS):
        count, power = count / 1000, power + 1
    return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f} {_UNITS[power - 1]}"


def counted(count: int, what: str) -> str:
    """A number of things: `1 shard`, `2 shards`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def span(seconds: float) -> str:
    """A time in its two largest units: `3 m 12 s`."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, unit)
        if count or (unit == 1 and not parts):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def plain(text: str) -> str:
    """A name on one line: what would move the cursor or end the line is escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def columns(rows: list[list[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Rows as aligned lines; the columns in `right` hold numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
