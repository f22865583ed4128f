"""How bars look. A module of its own, since rich is slow to load."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar


class _Pulsing(BarColumn):
    """A bar that pulses while a size is not known."""

    def render(self, task: Task) -> ProgressBar:
        """The bar."""
        bar = super().render(task)
        bar.pulse = bar.pulse or task.fields["pulsing"]
        return bar


def drawn() -> Progress:
    """Progress whose tasks have the fields `note` and `pulsing`."""
    shown = (
        _Pulsing(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    # Standard output is not redirected: it may be a pipe that wants the paths.
    return Progress(*shown, console=Console(stderr=True), transient=True, redirect_stdout=False)
