"""A line for people, from code that has no run at hand: ``trainer.say()``."""

from __future__ import annotations

from typing import Protocol

from ..distributed.main_process import is_main
from ..text import without_secrets


class LogFile(Protocol):
    """A run's folder, as far as it takes lines."""

    def line(self, text: str) -> None: ...


_log_file: LogFile | None = None


def say(text: str) -> None:
    """Print a line from the main process, and add the line to the run's log.txt.

    For tasks and callbacks. Before a run has a folder the line is only printed. Processes that load
    data say nothing, for all would say the same.
    """
    say_and_log(_log_file, text)


def say_and_log(log_file: LogFile | None, text: str) -> None:
    """Print a line from the main process, and add the line to the log.txt of a run if given."""
    if not is_main():
        return
    print(without_secrets(text), flush=True)
    if log_file:
        log_file.line(text)


def log_into(log_file: LogFile) -> None:
    """Add lines to this run's log.txt from here on: the run that was built last gets the lines."""
    global _log_file
    _log_file = log_file


def log_no_more(log_file: LogFile) -> None:
    """Leave a run's log.txt alone. That of another run stays."""
    global _log_file
    if _log_file is log_file:
        _log_file = None
