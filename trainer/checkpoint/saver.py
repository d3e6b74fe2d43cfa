"""Saving while training goes on: the step waits for the copy to host memory only.

A save goes through three stages, and all ranks change them at the same step boundary:
    writing      each rank's thread writes its own file
    committing   the main process's thread writes the manifest, renames, deletes old checkpoints
    done
Whether all ranks are through is asked at one boundary and known at the next (``AsyncMax``), so
nobody waits. One save is in flight at most: the next one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor

from ..distributed.agreement import Agreement
from ..distributed.votes import AsyncMax
from ..errors import CheckpointError, TrainerError
from ..faults.waits import waits_outside
from ..text import size
from . import discover, store
from .contents import STATE
from .disk import FileFact, check_free, check_shared
from .parts import Parts
from .snapshot import Snapshot, describe, read_extras, take

DONE, BUSY, FAILED = 0, 1, 2


class BackgroundTask:
    """A function in a thread; ``result`` is what it gave, ``error`` why it did not."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error = ""
        # A daemon: a process that has to go does not wait for it, and what it leaves is no
        # checkpoint yet.
        self.thread = Thread(target=self._run, args=(function,), name="checkpoint", daemon=True)
        self.thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self.result = function()
        except Exception as error:  # (it must become the error of all ranks, whatever it is)
            self.error = (
                str(error)
                if isinstance(error, CheckpointError)
                else f"{type(error).__name__}: {error}"
            )

    @property
    def state(self) -> int:
        return BUSY if self.thread.is_alive() else FAILED if self.error else DONE


@dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """What is kept of older checkpoints (``store.prune``), and what happens when a save fails.

    Args:
        keep_last: 0: nothing is saved at all.
        on_save_error: ``stop``, or ``continue`` training without it.
        in_background: whether training goes on while a checkpoint is written.
    """

    keep_last: int
    keep_every: int | None
    on_save_error: str
    in_background: bool


class Saver:
    """Saves checkpoints to ``folder``. Every method is collective: call it on every rank, at one
    step.

    Args:
        agreement: of the ranks that save together.
        say: shows a notice, on the main process.

    Attributes:
        last_step: the step of the newest checkpoint, which is not saved again.
        bytes: of a checkpoint, all ranks together; known once it is prepared.
    """

    def __init__(
        self, folder: Path, agreement: Agreement, policy: SavePolicy, say: Callable[[str], None]
    ) -> None:
        self.folder, self.agreement, self.policy, self.say = folder, agreement, policy, say
        self.last_step: int | None = None
        self.bytes = 0
        self._extras: Mapping[str, bytes] | None = None
        self._status = AsyncMax(agreement.all_reduce_max)
        self._buffers: dict[str, Tensor] = {}  # of the snapshot, for the next one
        self._snapshot: Snapshot | None = None  # None from the commit on
        self._task: BackgroundTask | None = None

    def prepare(self, parts: Parts, saves: int) -> list[str]:
        """Find out before the first step what would let every save fail; returns notices.

        Args:
            saves: as many checkpoints there will be at once; 0 where the run has come to its end.

        Raises:
            LaunchError, CheckpointError: no checkpoint could be written.
        """
        self.bytes = int(self.agreement.sum(parts.bytes()))
        if not (saves and self.policy.keep_last):
            return []
        check_shared(self.folder, self.agreement)

        def check_room() -> None:
            store.clean(self.folder)
            missing = max(
                1, saves - len(discover.named(self.folder))
            )  # the others have their room already
            check_free(
                self.folder,
                missing * self.bytes,
                f"room for {missing} checkpoints of {size(self.bytes)}",
            )

        self.agreement.run_on_main(check_room)
        try:
            self.agreement.run_on_main(lambda: describe(parts))
        except CheckpointError as error:
            if self.policy.on_save_error == "stop":
                raise CheckpointError(
                    f"no checkpoint of this run could be written: {error}"
                ) from None
            return [f"no checkpoint can be written as it is now: {error}"]
        return []

    def save(self, parts: Parts) -> None:
        """Begin a checkpoint of this step; it is complete when ``finish`` returns, or some steps
        later.

        Raises:
            TrainerError: a value is no finite number: such a checkpoint must not push out the good
                ones.
            CheckpointError: it or the one before failed, and ``on_save_error`` is ``stop``.
        """
        self.finish()
        if self.policy.keep_last == 0 or parts.step == self.last_step:
            return
        self.last_step = parts.step
        lost, problem = "", ""
        document: tuple[Mapping[str, bytes], Mapping[str, Tensor]] = {}, {}
        try:
            lost = next(
                (
                    one
                    for one in parts.not_finite()
                    if one not in parts.counters["not_finite_at_start"]
                ),
                "",
            )
            if parts.rank == 0 and not lost:
                document = self._begin(parts)
        except (TrainerError, OSError) as error:
            problem = str(error)
        found = self.agreement.gather((lost, problem))
        if lost := next((lost for lost, _ in found if lost), ""):
            self.agreement.run_on_main(partial(store.clean, self.folder))
            raise TrainerError(
                f"step {parts.step}: {lost} holds values that are not finite: no checkpoint of it is written, those "
                "before are kept; lower lr, set max_grad_norm, or look at the data"
            )
        if any(problem for _, problem in found):
            return self._fail([problem for _, problem in found])
        parts.strategy.sync_buffers()
        self._snapshot = snapshot = take(
            parts, *document, self._buffers, copied=self.policy.in_background
        )
        temporary = store.temporary_of(self.folder, parts.step)
        self._task = BackgroundTask(lambda: snapshot.write(temporary))
        if not self.policy.in_background:
            self.finish()

    def _begin(self, parts: Parts) -> tuple[Mapping[str, bytes], Mapping[str, Tensor]]:
        check_free(self.folder, self.bytes, "a checkpoint")
        if self._extras is None:
            self._extras = read_extras(parts)
        text, tensors = describe(parts)
        store.begin(self.folder, parts.step)
        card = parts.task.model_card(parts.run)  # it tells of this step
        return {
            STATE: text,
            **self._extras,
            **({"extras/README.md": card.encode()} if card else {}),
        }, tensors

    def finish(self) -> None:
        """Wait for the save in flight.

        Raises:
            CheckpointError: as ``poll``.
        """
        while self._task is not None:
            with waits_outside("a disk"):  # a bucket that is mounted as a folder takes its time
                self._task.thread.join()
            self.poll()

    def poll(self) -> None:
        """Move a save on that all ranks are through with, at a step boundary.

        Raises:
            CheckpointError: it failed on some rank, and ``on_save_error`` is ``stop``.
        """
        task, snapshot = self._task, self._snapshot
        if task is None:
            return
        [agreed] = self._status.result() or [BUSY]
        if agreed == BUSY:
            self._status.start(task.state)
            return
        self._task = self._snapshot = None  # nobody reads its buffers any more
        if agreed == FAILED:
            task.thread.join()
            self._fail(self.agreement.gather(task.error))
        elif snapshot is not None:
            files = [fact for facts in self.agreement.gather(task.result) for fact in facts]
            commit = partial(self._commit, snapshot.step, snapshot.facts, files, snapshot.pinned)
            self._task = BackgroundTask(commit if snapshot.rank == 0 else lambda: None)
            self._status.start(self._task.state)

    def _commit(
        self, step: int, facts: Mapping[str, Any], files: list[FileFact], pinned: Collection[int]
    ) -> None:
        created, policy = datetime.now(timezone.utc).isoformat(timespec="seconds"), self.policy
        store.commit(self.folder, step, {**facts, "created": created}, files)
        try:
            store.prune(
                self.folder, keep_last=policy.keep_last, keep_every=policy.keep_every, pinned=pinned
            )
        except (OSError, CheckpointError) as error:  # nothing is lost by it
            self.say(
                f"note: an older checkpoint than that of step {step} cannot be deleted: {error}"
            )

    def _fail(self, errors: list[str]) -> None:
        self.agreement.run_on_main(partial(store.clean, self.folder))
        reasons = dict.fromkeys(error for error in errors if error)
        text = f"the checkpoint of step {self.last_step} was not saved: {'; '.join(reasons)}"
        if self.policy.on_save_error == "stop":
            raise CheckpointError(f"{text}; set on_save_error: continue to train on without it")
        self.say(f"note: {text}; the ones before are kept")
