"""Saving while training continues: a step waits only for the copy to host memory.

A save goes through three stages, and all ranks change from one to the next at the same step:
``writing`` (each rank's thread writes its own file), ``committing`` (the main process writes the
manifest, renames, deletes old checkpoints) and ``done``.

At a step boundary the ranks ask whether all have finished a stage, and know the answer at the next,
so nobody waits. At most one save is in flight: the next save waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from torch import Tensor

from ..config.train_config import TrainConfig
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, TrainerError
from ..text import told
from . import store
from .disk import FileFact, check_free, check_shared
from .finite_values import look_at
from .parts import Parts
from .snapshot import Snapshot, describe, read_extras, take


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Do work in a thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # any error must become the error of all ranks
            future.set_exception(error)

    # A daemon: a process that has to end does not wait. The files so far are no checkpoint yet.
    Thread(target=run, name="checkpoint", daemon=True).start()
    return future


@dataclass(eq=False)
class Saver:
    """Saves checkpoints to ``folder``. Every method is collective, at the same step."""

    folder: Path
    agreement: Agreement
    config: TrainConfig
    say: Callable[[str], None]
    last_step: int | None = None
    _extras: Mapping[str, bytes] | None = None
    _in_flight: Iterator[Future[Any]] = field(default_factory=lambda: iter(()))

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
        name, needed = "", 0
        if self.config.keep_last:
            name, needed = look_at(parts, self.agreement.gather)
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
            files, user_tensors = self._begin(parts, needed) if parts.rank == 0 else ({}, {})
        except (TrainerError, OSError) as error:
            problem = str(error)
        problems = self.agreement.gather(problem)
        if any(problems):
            self._report(problems)
            return

        parts.strategy.sync_copies(self.agreement.gather)
        snapshot = take(parts, pieces, files, user_tensors, copied=self.config.save_in_background)
        self._in_flight = self._stages(snapshot)
        self.poll()
        if not self.config.save_in_background:
            self.finish()

    def _begin(self, parts: Parts, needed: int) -> tuple[Mapping[str, bytes], Mapping[str, Tensor]]:
        """Make the temporary folder. Return the main process's files, and the tensors of users.

        ``needed`` are the bytes of the checkpoint.
        """
        check_free(self.folder, needed)
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
        for work in self._in_flight:
            work.exception()

    def poll(self) -> None:
        """Move a save to the next stage if all ranks have finished. Call at a step boundary."""
        next(self._in_flight, None)

    def _stages(self, snapshot: Snapshot) -> Iterator[Future[Any]]:
        """Write and commit a checkpoint, from boundary to boundary."""
        write = partial(snapshot.write, store.temporary_of(self.folder, snapshot.step))
        written = yield from self._results(in_background(write))
        if written:
            snapshot.pieces.clear()  # frees the memory
            commit = partial(self._commit, snapshot, [*chain(*written)])
            yield from self._results(in_background(commit if snapshot.rank == 0 else bool))

    def _results(self, work: Future[Any]) -> Generator[Future[Any], None, Sequence[Any]]:
        """Wait for the work of all ranks. Return the results. None if some work failed, as told."""
        busy = 1
        while busy:
            yield work
            of_ranks = self.agreement.begin_max(int(not work.done()))
            yield work
            [busy] = of_ranks()

        error = work.exception()
        text = told(error) if error else ""
        found = self.agreement.gather((text, None if error else work.result()))
        errors, results = zip(*found, strict=True)
        if any(errors):
            self._report(errors)
            return ()
        return results

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

    def _report(self, errors: Iterable[str]) -> None:
        """Report a save that failed, by the errors of all ranks. Collective: call on every rank."""
        self.agreement.run_on_main(partial(store.clean, self.folder))
        reasons = dict.fromkeys(filter(None, errors))
        text = f"the checkpoint of step {self.last_step} was not saved: {'; '.join(reasons)}"
        if self.config.on_save_error == "stop":
            raise CheckpointError(f"{text}; set on_save_error: continue to train without it")
        self.say(f"note: {text}; the ones before are kept")
