"""A descriptor that is closed when nobody uses it any more, so that no read can meet another file at its number."""

from __future__ import annotations

import contextlib
import os

from cachedaemon_client.process import alive


class Descriptor(int):
    """The number of an open file, closed with the last reference to this object.

    Whoever reads keeps the object in a local variable for as long as the system call runs: what another thread closes
    meanwhile is only given up, and the kernel cannot hand the number out again under a read. That costs a read nothing.
    """

    epoch: int

    @classmethod
    def copy_of(cls, number: int) -> Descriptor:
        """Another descriptor of the same open file, not inherited by programs; raises OSError."""
        made = cls(os.dup(number))
        made.epoch = alive[0]
        return made

    def __del__(self) -> None:
        """Close; but in a forked child the number is closed already, and may be another file's (`process`)."""
        if getattr(self, "epoch", -1) == alive[0] or not alive[0]:
            with contextlib.suppress(OSError):  # somebody closed whatever was open
                os.close(self)
