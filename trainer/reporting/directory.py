"""The folder of a run, and its files.

config.yaml     the training config, resolved
plan.json       the plan: strategy, world size, precision, batch, learning rate, versions
metrics.jsonl   one JSON object a logged step. Evaluation rows carry eval/... keys
summary.json    the uses of time, memory of every rank, the last evaluation
attempts.json   how long each attempt of the run took, and from which step to which
log.txt         the plain lines that the terminal showed
model/          the exported model
best/           the best model
checkpoints/    step-XXXXXXXX/ to resume from
evaluations/    results of `trainer evaluate`
files/          files of the user's callbacks: `run.files`
.lock           locked by the run that writes here

Wings add files of their own, which ``used_folder.py`` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..distributed.agreement import Agreement
from ..errors import DEFAULT, ConfigError, Origin, writing
from ..text import without_secrets
from .lock import LOCK, FolderLock, Locked, lock_folder
from .say import log_into, log_no_more


class RunDirectory:
    """The folder of a run. Only the main process writes, by methods that may raise CheckpointError.

    ``row`` and ``line`` are for the main process. Every rank may call the others.
    """

    _lock: FolderLock | None = None

    def __init__(self, path: str, *, main: bool, origin: Origin = DEFAULT) -> None:
        self.path = Path(path)
        self.main = main
        self.origin = origin.named("output_dir")

    def lock(self, agreement: Agreement) -> list[str]:
        """Make and lock the folder, before any file in the folder is read or changed. Collective.

        Return why the folder is not locked, on the main process.

        Raises:
            ConfigError: another run has the lock.
            OSError: the folder cannot be made.
        """
        agreement.run_on_main(self._make_and_lock)
        return self._lock.notices if self._lock else []

    def _make_and_lock(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
        except Locked as holder:
            rule = f"another run is writing there ({holder}); end it, or give another folder"
            raise self._error(rule) from None

    def release(self) -> None:
        """Let another run have the folder."""
        log_no_more(self)
        self._lock = None

    def claim(self, agreement: Agreement, *, overwrite: bool, continues: bool) -> None:
        """Take the locked folder for this run, as ``used_folder.take_over`` does. Collective.

        Raises:
            ConfigError: the folder is used. With ``overwrite``, by others than a run.
        """
        agreement.run_on_main(lambda: self._claim(overwrite, continues))
        log_into(self)

    def _claim(self, overwrite: bool, continues: bool) -> None:
        entries = [entry for entry in self.path.iterdir() if entry.name != LOCK]
        if entries:
            from .used_folder import take_over

            problem = take_over(self.path, entries, overwrite=overwrite, continues=continues)
            if problem:
                if not (self.path / "plan.json").exists():  # a refused run leaves no trace
                    (self.path / LOCK).unlink(missing_ok=True)
                self.release()
                raise self._error(problem)

    def _error(self, rule: str) -> ConfigError:
        return self.origin.error(rule, str(self.path))

    def write(self, name: str, text: str) -> None:
        """Write a small file."""
        self._write(name, "wb", without_secrets(text))

    def write_json(self, name: str, value: object) -> None:
        """Write a small file of JSON. Other values become text, and numbers not finite null."""
        self.write(name, json_text(value))

    def row(self, values: Mapping[str, Any], name: str = "metrics.jsonl") -> None:
        """Append to a file of rows. A number that is not finite becomes null."""
        self._write(name, "ab", json.dumps(as_json(values)) + "\n")

    def line(self, text: str) -> None:
        """Append to log.txt."""
        self._write("log.txt", "ab", without_secrets(text) + "\n")

    def _write(self, name: str, mode: str, text: str) -> None:
        if not self.main:
            return
        with writing(self.path / name) as path, open(path, mode) as file:
            # Names of files need not be valid text.
            file.write(text.encode(errors="backslashreplace"))


def json_text(value: object) -> str:
    """Return a value as JSON for a file, as ``RunDirectory.write_json`` writes it."""
    return json.dumps(as_json(value), indent=2) + "\n"


def _mapping_or_text(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def as_json(value: object, default: Callable[[Any], object] = _mapping_or_text) -> Any:
    """Return a value as JSON has it, with None for the numbers that are not finite.

    ``default`` replaces the values that JSON does not know.
    """
    return json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
