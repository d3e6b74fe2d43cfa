"""Saving while training continues: a step waits only for the copy to host memory.

A save goes through three stages, and all ranks change from one to the next at the same step:
``writing`` (each rank's thread writes its own file), ``committing`` (the main process writes the
manifest, renames, deletes old checkpoints) and ``done``.

At a step boundary the ranks ask whether all have finished a stage, and know the answer at the next,
so nobody waits. At most one save is in flight: the next save waits.
"""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..config.train_config import TrainConfig
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, TrainerError
from ..text import told
from . import store
from .disk import check_free, check_shared
from .parts import Parts
from .safetensors_io import Key
from .snapshot import describe, read_extras, take, write


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

            def try_out() -> None:
                store.clean(self.folder)
                describe(parts)

            self.agreement.run_on_main(try_out)

    def save(self, parts: Parts) -> None:
        """Begin a checkpoint of this step, as ``Run.save``. ``finish`` waits for the end."""
        self.finish()
        if self.config.keep_last == 0 or parts.step == self.last_step:
            return
        self.last_step = parts.step
        parts.data.gather(self.agreement.gather)

        pieces: list[tuple[Key, Tensor]] = []
        files: dict[str, bytes] = {}

        def begin() -> str:
            pieces.extend(parts.pieces())  # views, so this takes no memory
            # Each rank has its own buffers until they are averaged and written.
            name = not_finite([*pieces, *parts.buffer_pieces()])
            if parts.rank == 0 and not name:
                files.update(self._begin(parts, pieces))
            return name

        # A rank that fails here tells all others before anything is copied.
        begun = self._done(begin, (TrainerError, OSError))
        if any(begun):
            self.fail(
                f"step {parts.step}: {next(filter(None, begun))} holds values that are not finite: "
                "no checkpoint of it is written, those before are kept"
            )
        if begun:
            parts.strategy.sync_copies(self.agreement.gather)
            taken = take(parts, pieces, copied=self.config.save_in_background)
            self._in_flight = self._stages(parts, taken, files)
            self.poll()
            if not self.config.save_in_background:
                self.finish()

    def _begin(self, parts: Parts, pieces: list[tuple[Key, Tensor]]) -> dict[str, bytes]:
        """Make the temporary folder. Return the small files, and add the tensors of users."""
        of_rank = sum(tensor.nbytes for _, tensor in pieces)  # much the same on each rank
        check_free(self.folder, of_rank * parts.world_size)
        if self._extras is None:
            self._extras = read_extras(parts)
        text, tensors = describe(parts)
        store.begin(self.folder, parts.step)

        pieces += [(Key("user", name), tensor) for name, tensor in tensors.items()]
        files = {store.STATE: text, **self._extras}
        card = parts.task.model_card(parts.run)  # the text changes from step to step
        if card:
            files["extras/README.md"] = card.encode()
        return files

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

    def _stages(
        self, parts: Parts, taken: list[tuple[Key, Tensor]], files: Mapping[str, bytes]
    ) -> Iterator[Future[Any]]:
        """Write and commit a checkpoint, from boundary to boundary."""
        facts = {
            "step": parts.step,
            "samples": parts.position.samples,
            "strategy": parts.plan.strategy,
            "world_size": parts.world_size,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        pinned = set().union(*(callback.pinned_steps() for callback in parts.callbacks))
        folder = store.temporary_of(self.folder, parts.step)
        written = yield from self._results(partial(write, folder, parts.rank, taken, files))
        taken.clear()  # frees the memory

        def commit() -> None:
            store.commit(self.folder, facts, dict(ChainMap(*written)))
            try:
                store.prune(
                    self.folder,
                    keep_last=self.config.keep_last,
                    keep_every=self.config.keep_every,
                    pinned=pinned,
                )
            except (OSError, CheckpointError) as error:  # the new checkpoint is safe
                self.say(f"note: an old checkpoint cannot be deleted: {error}")

        if written:
            yield from self._results(commit if parts.rank == 0 else bool)

    def _results(self, work: Callable[[], Any]) -> Generator[Future[Any], None, Sequence[Any]]:
        """Do work in a thread of each rank. Return the results as ``_done`` does."""
        future = ThreadPoolExecutor(1).submit(work)
        busy = 1
        while busy:
            yield future
            of_ranks = self.agreement.begin_max(int(not future.done()))
            yield future
            [busy] = of_ranks()
        return self._done(future.result, Exception)

    def _done(self, work: Callable[[], Any], known: Any) -> Sequence[Any]:
        """Do work on all ranks. Return the results, none if some work failed, as told. Collective.

        ``known`` are the errors that are told. Others are raised.
        """
        text, result = "", None
        try:
            result = work()
        except known as error:
            text = told(error)
        errors, results = zip(*self.agreement.gather((text, result)), strict=True)
        if not any(errors):
            return results

        self.agreement.run_on_main(partial(store.clean, self.folder))
        reasons = dict.fromkeys(filter(None, errors))
        text = f"the checkpoint of step {self.last_step} was not saved: {'; '.join(reasons)}"
        if self.config.on_save_error == "stop":
            raise CheckpointError(f"{text}; set on_save_error: continue to train without it")
        self.say(f"note: {text}; the ones before are kept")
        return ()


@torch.no_grad()
def not_finite(pieces: Iterable[tuple[Key, Tensor]]) -> str:
    """Return the name of a tensor with values that are not finite. "" if there is none.

    A checkpoint with such values would push out the good ones.
    Buffers and frozen parameters may be infinite (a mask of -inf), and not NaN. A sum shows such a
    value at a fifteenth of the cost of a test of each, and may overflow: a tensor whose sum is not
    finite is looked at again.
    """
    for key, tensor in pieces:
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():
            may_be_infinite = key.kind in ("buffer", "frozen")
            values = tensor.float()
            good = ~values.isnan() if may_be_infinite else values.isfinite()
            if not good.all():
                return f"{key.kind} {key.name}"
    return ""
