"""Another program, run to its end with the signals that we get."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

PLACE = "{}"
NOT_RUNNABLE, NOT_FOUND = 126, 127
"""Exit status of a program that cannot be started, as POSIX has it for env(1)."""

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True)
class Template:
    """A command line with `{}` for paths."""

    command: list[str]

    def __call__(self, paths: list[str]) -> list[str]:
        """The command line: all paths in the place of a single `{}`, else one each."""
        left = iter(paths)
        single = self.command.count(PLACE) == 1
        filled: list[str] = []
        for word in self.command:
            filled += [word] if word != PLACE else left if single else [next(left)]
        return filled


def run(command: list[str]) -> int:
    """Exit status of the program: its own, 128 + n when signal n ended it, 126 or 127 when it cannot be started.

    Signals are blocked and waited for rather than handled, so that none is lost between start and end (sigwaitinfo(2)).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=before, setsigdef=_IGNORED_BY_PYTHON)
    except OSError as cause:
        sys.stderr.write(f"cachedaemon: {command[0]}: {cause.strerror}\n")
        return NOT_FOUND if isinstance(cause, FileNotFoundError) else NOT_RUNNABLE
    else:
        return _await(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await(child: int) -> int:
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        came = signal.sigwaitinfo((*_PASSED_ON, signal.SIGCHLD))
        # A terminal sends its signals to the whole foreground group (si_code > 0): the program has them already.
        if came.si_signo != signal.SIGCHLD and came.si_code <= 0:
            os.kill(child, came.si_signo)
