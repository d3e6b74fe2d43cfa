"""Saving while training continues: a step waits only for the copy to host memory.

A save goes through three stages, and all ranks change from one to the next at the same step:
``writing`` (each rank's thread writes its own file), ``committing`` (the main process writes the
manifest, renames, deletes old checkpoints) and ``done``.

At a step boundary the ranks ask whether all have finished a stage, and know the answer at the next,
so nobody waits. At most one save is in flight: the next save waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from torch import Tensor

from ..config.train_config import TrainConfig
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, TrainerError
from . import store
from .disk import FileFact, check_free, check_shared
from .finite_values import name_not_finite
from .parts import Parts
from .safetensors_io import Key
from .snapshot import Snapshot, describe, read_extras, take

DONE, BUSY, FAILED = 0, 1, 2


class BackgroundTask:
    """A function that runs in a thread, with the ``result`` or the text of the ``error``."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error = ""
        # A daemon: a process that has to end does not wait. The files so far are no checkpoint yet.
        self.thread = Thread(target=self._run, args=(function,), name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self.result = function()
        except CheckpointError as error:
            self.error = str(error)
        except Exception as error:  # any error must become the error of all ranks
            self.error = f"{type(error).__name__}: {error}"

    @property
    def state(self) -> int:
        if self.thread.is_alive():
            return BUSY
        return FAILED if self.error else DONE


@dataclass(eq=False)
class Saver:
    """Saves checkpoints to ``folder``. Every method is collective, at the same step."""

    folder: Path
    agreement: Agreement
    config: TrainConfig
    say: Callable[[str], None]
    last_step: int | None = None
    _extras: Mapping[str, bytes] | None = None
    # Waits for the worst status of all ranks. None if they have not begun to ask.
    _status: Callable[[], list[int]] | None = None
    _snapshot: Snapshot | None = None  # None from the commit on
    _task: BackgroundTask | None = None

    def prepare(self, parts: Parts, *, finished: bool) -> None:
        """Find out before the first step whether every save would fail.

        Raises:
            LaunchError, CheckpointError: no checkpoint could be written.
        """
        if self.config.keep_last and not finished:
            check_shared(self.folder, self.agreement)
            self.agreement.run_on_main(partial(store.clean, self.folder))
            self.agreement.run_on_main(partial(describe, parts))

    def save(self, parts: Parts) -> None:
        """Begin a checkpoint of this step, as ``Run.save``. ``finish`` waits for the end."""
        name = name_not_finite(parts, self.agreement.gather) if self.config.keep_last else ""
        if name:
            self.fail(
                f"step {parts.step}: {name} holds values that are not finite: no checkpoint of "
                "it is written, those before are kept"
            )
        self.finish()
        if self.config.keep_last == 0 or parts.step == self.last_step:
            return
        self.last_step = parts.step
        parts.data.gather(self.agreement.gather)

        # A rank that fails here tells all others before anything is copied.
        problem = ""
        try:
            pieces = list(parts.pieces())  # views, so this takes no memory
            files, user_tensors = self._begin(parts, pieces) if parts.rank == 0 else ({}, {})
        except (TrainerError, OSError) as error:
            problem = str(error)
        problems = self.agreement.gather(problem)
        if any(problems):
            self._report(problems)
            return

        parts.strategy.sync_copies(self.agreement.gather)
        self._snapshot = take(
            parts, pieces, files, user_tensors, copied=self.config.save_in_background
        )
        self._task = BackgroundTask(
            partial(self._snapshot.write, store.temporary_of(self.folder, parts.step))
        )
        if not self.config.save_in_background:
            self.finish()

    def _begin(
        self, parts: Parts, pieces: Sequence[tuple[Key, Tensor]]
    ) -> tuple[Mapping[str, bytes], Mapping[str, Tensor]]:
        """Make the temporary folder. Return the main process's files, and the tensors of users."""
        check_free(self.folder, parts.world_size * sum(tensor.nbytes for _, tensor in pieces))
        if self._extras is None:
            self._extras = read_extras(parts)
        text, user_tensors = describe(parts)
        store.begin(self.folder, parts.step)

        files = {store.STATE: text, **self._extras}
        card = parts.task.model_card(parts.run)  # the text changes from step to step
        if card:
            files["extras/README.md"] = card.encode()
        return files, user_tensors

    def fail(self, text: str) -> NoReturn:
        """End the run because of a value that is not finite, after a save in flight."""
        with contextlib.suppress(CheckpointError):
            self.finish()
        raise TrainerError(
            f"{text}. Lower lr, set max_grad_norm, look at the data, or set on_nan: skip"
        )

    def finish(self) -> None:
        """Wait for the save in flight. Raises as ``poll``."""
        while self._task is not None:
            self._task.thread.join()
            self.poll()

    def poll(self) -> None:
        """Move a save to the next stage if all ranks have finished. Call at a step boundary."""
        task, snapshot = self._task, self._snapshot
        if task is None:
            return

        worst = self._status()[0] if self._status else BUSY  # of all ranks, at the last boundary
        if worst == BUSY:
            self._status = self.agreement.begin_max(task.state)
            return

        # Nobody reads the snapshot's memory any more.
        self._task = self._snapshot = self._status = None
        if worst == FAILED:
            task.thread.join()
            errors = self.agreement.gather(task.error)
            self._report(errors)
        elif snapshot is not None:
            written = self.agreement.gather(task.result)
            files = [fact for facts in written for fact in facts]
            commit = partial(self._commit, snapshot, files)
            self._task = BackgroundTask(commit if snapshot.rank == 0 else lambda: None)
            self._status = self.agreement.begin_max(self._task.state)

    def _commit(self, snapshot: Snapshot, files: list[FileFact]) -> None:
        """Publish the checkpoint, then delete old ones. In a thread of the main process."""
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        store.commit(self.folder, snapshot.step, {**snapshot.facts, "created": created}, files)
        try:
            store.prune(
                self.folder,
                keep_last=self.config.keep_last,
                keep_every=self.config.keep_every,
                pinned=snapshot.pinned,
            )
        except (OSError, CheckpointError) as error:  # the new checkpoint is safe
            self.say(f"note: an old checkpoint cannot be deleted: {error}")

    def _report(self, errors: list[str]) -> None:
        """Report a save that failed, by the errors of all ranks. Collective: call on every rank."""
        self.agreement.run_on_main(partial(store.clean, self.folder))
        reasons = dict.fromkeys(filter(None, errors))
        text = f"the checkpoint of step {self.last_step} was not saved: {'; '.join(reasons)}"
        if self.config.on_save_error == "stop":
            raise CheckpointError(f"{text}; set on_save_error: continue to train without it")
        self.say(f"note: {text}; the ones before are kept")
