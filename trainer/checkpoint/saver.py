"""Saving while training goes on: the step waits for the copy to host memory only.

A save goes through three stages, and all ranks change them at the same step boundary:
    writing      each rank's thread writes its own file
    committing   the main process's thread writes the manifest, renames, deletes old checkpoints
    done
Whether all ranks are through is asked at one boundary and known at the next (``Vote``), so nobody waits. One save is
in flight at most: the next one waits for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from ..distributed.agreement import Vote
from ..errors import CheckpointError, TrainerError
from ..text import size
from . import discover, store
from .disk import check_free, check_shared
from .ranges import FileFact
from .restore import restore
from .resume import Start
from .snapshot import Documents, Snapshot, bytes_of, documents_of, extras_of, not_finite, take, unsavable
from .weights import load_weights

if TYPE_CHECKING:
    from ..state import TrainState

DONE, BUSY, FAILED = 0, 1, 2


class Work:
    """A function in a thread; ``result`` is what it gave, ``error`` why it did not."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error = ""
        self._function = function
        # A daemon: a process that has to go does not wait for it, and what it leaves is no checkpoint yet.
        self.thread = Thread(target=self._run, name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._function()
        except Exception as error:  # (it must become the error of all ranks, whatever it is)
            self.error = str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"

    @property
    def state(self) -> int:
        return BUSY if self.thread.is_alive() else FAILED if self.error else DONE


class Saver:
    """Saves checkpoints of a training to ``folder``. Every method is collective: call it on every rank, at one step.

    Args:
        folder: of all checkpoints of the run.
        start: where the run begins; that checkpoint is not written again.

    Raises:
        CheckpointError: neither the model nor a checkpoint of it could ever be written.
    """

    def __init__(self, run: TrainState, folder: Path, start: Start) -> None:
        self.run, self.folder, self.start = run, folder, start
        self.config = run.config
        self.last_step = start.found.step if start.found and start.continues else None
        self.bytes = int(run.control.sum(bytes_of(run)))
        ended = self.last_step == run.total_steps and run.directory.ended_at() == run.total_steps
        [self.finished, *_] = run.control.gather(ended)  # nothing is left to do, and nothing is written
        self._notices: list[str] = []
        self._extras: dict[str, bytes] | None = None
        self._documents = Documents()
        self._vote = Vote(run.control)
        self._snapshot: Snapshot | None = None
        self._work: Work | None = None
        self._writing = False
        if self.finished:
            return
        if self.config.keep_last:
            check_shared(folder, run.control)
            run.control.on_main(self._prepare)
            self._try_out()

    def _prepare(self) -> None:
        store.clean(self.folder)
        config, every = self.config, self.run.save_every
        saves = 1 if every is None else -(-self.run.total_steps // every)
        kept = min(saves, config.keep_last + 1) + (config.best_metric is not None)
        kept += self.run.total_steps // config.keep_every if config.keep_every else 0
        missing = max(1, kept - len(discover.listing(self.folder)))  # the others have their room already
        check_free(self.folder, missing * self.bytes, f"room for {missing} checkpoints of {size(self.bytes)}")

    def _try_out(self) -> None:
        """Make the state of a checkpoint for nothing: what can never be saved is known before the first step."""
        try:
            self.run.control.on_main(lambda: documents_of(self.run, {}))
        except CheckpointError as error:
            if self.config.on_save_error == "stop":
                raise CheckpointError(f"no checkpoint of this run could be written: {error}") from None
            self._notices.append(f"no checkpoint can be written as it is now: {error}")

    def resume(self) -> list[str]:
        """Begin where ``start`` says, or with the weights that the config names; returns what is worth knowing."""
        start, directory = self.start, self.run.directory
        notices = [f"passed over {one.path.name}: {one.problem}" for one in start.passed_over]
        if start.found is not None:
            notices.append(f"resumed from {start.found.path}")
            notices += restore(self.run, start.found)
        elif start.continues:
            notices.append(f"resume: auto: {directory.path} holds no checkpoint: starts at step 0")
        if start.found is None and self.config.weights is not None:
            notices += load_weights(self.run, Path(self.config.weights))
        if start.continues and not self.finished:
            self.run.control.on_main(lambda: store.set_aside(start.passed_over))
            directory.cut_rows(self.run.step)
        return [*notices, *self._notices, *directory.notices]

    def save(self) -> None:
        """Begin a checkpoint of this step; it is complete when ``finish`` returns, or some steps later.

        Raises:
            TrainerError: a weight is no finite number: such a checkpoint must not push out the good ones.
            CheckpointError: it or the one before failed, and ``on_save_error`` is ``stop``.
        """
        self.finish()
        run = self.run
        if self.config.keep_last == 0 or run.step == self.last_step:
            return
        self.last_step = run.step
        found = run.control.gather((not_finite(run), unsavable(run)))
        lost = next((name for name, _ in found if name), "")
        if lost:
            raise TrainerError(
                f"step {run.step}: {lost} holds values that are not finite: no checkpoint of it is written, those "
                "before are kept; lower lr, set max_grad_norm, or look at the data"
            )
        try:
            problem = next((problem for _, problem in found if problem), "")
            if problem:
                raise CheckpointError(problem)
            run.control.on_main(self._begin)
        except (CheckpointError, OSError) as error:
            return self._fail([str(error)])
        run.strategy.agree_buffers()
        self._snapshot = take(run, self._documents, copied=self.config.save_in_background)
        self._documents = Documents()
        snapshot, temporary = self._snapshot, store.temporary_of(self.folder, run.step)
        self._work, self._writing = Work(lambda: snapshot.write(temporary)), True
        if not self.config.save_in_background:
            self.finish()

    def _begin(self) -> None:
        check_free(self.folder, self.bytes, "a checkpoint")
        if self._extras is None:
            self._extras = extras_of(self.run)
        self._documents = documents_of(self.run, self._extras)
        store.begin(self.folder, self.run.step)

    def poll(self) -> None:
        """At a step boundary: move a save on that all ranks are through with.

        Raises:
            CheckpointError: it failed on some rank, and ``on_save_error`` is ``stop``.
        """
        if self.run.step < self.run.total_steps:  # the last step waits for it anyway, and is to leave its model
            self._move_on()

    def finish(self) -> None:
        """Wait for the save in flight.

        Raises:
            CheckpointError: as ``poll``.
        """
        while self._work is not None:
            self._work.thread.join()
            self._move_on()

    def _move_on(self) -> None:
        if self._work is None:
            return
        agreed = self._vote.result()
        if agreed in (None, BUSY):
            self._vote.cast(self._work.state)
        elif agreed == FAILED:
            self._work.thread.join()
            errors = self.run.control.gather(self._work.error)
            self._work = self._snapshot = None
            self.run.control.on_main(self._sweep)
            self._fail(errors)
        elif self._writing:
            self._commit()
            self._vote.cast(self._work.state)
        else:
            self._work = self._snapshot = None

    def _commit(self) -> None:
        assert self._work is not None and self._snapshot is not None, "a save is in flight"
        parts: list[list[FileFact]] = self.run.control.gather(self._work.result)
        files = [fact for part in parts for fact in part]
        step, facts = self._snapshot.step, self._snapshot.facts
        self._snapshot, self._writing = None, False  # its memory is free again
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        pinned = {step for callback in self.run.callbacks for step in callback.pinned_steps()}

        def commit() -> None:
            if not self.run.is_main:
                return
            store.commit(self.folder, step, {**facts, "created": created}, files)
            keep_last, keep_every = self.config.keep_last, self.config.keep_every
            try:
                store.prune(self.folder, keep_last=keep_last, keep_every=keep_every, pinned=pinned)
            except OSError as error:  # nothing is lost by it
                self.run.say(f"note: an older checkpoint than that of step {step} cannot be deleted: {error}")

        self._work = Work(commit)

    def _sweep(self) -> None:
        if self.folder.is_dir():
            for left in self.folder.glob(".step-*.part"):
                shutil.rmtree(left, ignore_errors=True)

    def _fail(self, errors: list[str]) -> None:
        told = dict.fromkeys(error for error in errors if error)
        text = f"the checkpoint of step {self.last_step} was not saved: {'; '.join(told)}"
        if self.config.on_save_error == "stop":
            raise CheckpointError(f"{text}; set on_save_error: continue to train on without it")
        self.run.say(f"note: {text}; the ones before are kept")
