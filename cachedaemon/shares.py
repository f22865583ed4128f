"""How users with plans share the room: no user's unread shards are protected beyond an equal part. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from cachedaemon.entries import Entry
from cachedaemon.model import Ref
from cachedaemon.plans import Plan


class Shares:
    """Unread shards of each user whose plans run, beside the part of the cap that each may have. One alone may have it all."""

    def __init__(self, plans: Collection[Plan], cap: int, unread: Iterable[str]) -> None:
        """`unread`: for each shard that was fetched ahead, or is on its way, and was not used yet, the tag of its plan."""
        by_tag = Counter(unread)
        self._unread: Counter[int] = Counter()
        for plan in plans:
            self._unread[plan.user] += by_tag[plan.tag]
        self._part = max(1, cap // max(1, len(self._unread)))

    def take(self, user: int) -> bool:
        """Whether one more may come for this user; if so it counts from now on."""
        if len(self._unread) > 1 and self._unread[user] >= self._part:
            return False
        self._unread[user] += 1
        return True


def beyond(plans: Sequence[Plan], entries: Iterable[Entry], cap: int, next_use: Callable[[Ref], float]) -> list[Entry]:
    """Unread shards that users have beyond their parts, those that are needed last: from when they were alone, say."""
    users = {plan.tag: plan.user for plan in plans}
    if len(set(users.values())) < 2:
        return []
    unread: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.unread_of in users:
            unread.setdefault(users[entry.unread_of], []).append(entry)
    part = max(1, cap // len(set(users.values())))
    too_many = ((len(some) - part, some) for some in unread.values() if len(some) > part)
    return [
        entry
        for number, some in too_many
        for entry in heapq.nlargest(number, some, key=lambda entry: (next_use(entry.ref), entry.ref))
    ]
