"""The place of a run, for code that is given only a batch or an item: ``trainer.now()``.

A run notes its moment when ``run.windows()`` yields and while ``run.evaluate()`` measures. Loaders
read ahead of the training, also in other processes, so the moment of a batch travels with the keys
of the items (``augment.py``).

The note belongs to the process, not to a thread: activation checkpointing computes layers again on
a thread of autograd, in which the moment must be the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Generator

from ..errors import TrainerError
from ..private.torch import not_compiled
from .seeds import generator_of

# The last number of the generator's seed. Samples have a seed of (seed, epoch, index), in which
# missing numbers count as zeros.
_OF_STEPS = 1


class Now(NamedTuple):
    """The place of a run, as ``trainer.now()`` returns it.

    The same on every layout and rank, in every micro-batch of a step, in loading processes, and
    after resuming.

    Args:
        step: number of the optimizer step that is being made, from 1. In an evaluation the steps
            that are done.
        epoch: epochs done at the step's beginning, as a fraction, or whole epochs of a stream. All
            samples of the step belong to epoch ``int(epoch)``.
        samples: that all ranks have consumed before this step.
        total_steps: the step at which training ends.
        evaluation_set: name of the set that is measured, "" for a set without a name. None while
            training.
        seed: the config's.
        of_sample: in ``augment``, the generator of the sample.
    """

    step: int
    epoch: float
    samples: int
    total_steps: int
    evaluation_set: str | None = None
    seed: int = 0
    of_sample: Generator | None = None

    @property
    def generator(self) -> Generator:
        """Return a CPU generator of (seed, step) that begins anew at each access.

        In ``augment`` the generator of the sample, which is the argument ``generator``.
        """
        if self.of_sample is not None:
            return self.of_sample
        return generator_of(self.seed, self.step, 0, _OF_STEPS)


_current: Now | None = None


# torch.compile takes a number in a variable for a constant, and would compile anew in each step.
@not_compiled
def now() -> Now:
    """Return the place of the run: step, epoch, and a generator of the step.

    For ``training_step``, ``evaluation_step``, ``prediction_step``, ``augment``, ``collate``,
    callbacks, and loops of your own. Of several runs in a process, the run counts that read a
    window or evaluated last. The moment of a window is ``window.now``.

    Raises:
        TrainerError: nothing is trained or evaluated.
    """
    if _current is None:
        raise TrainerError(
            "trainer.now(): nothing is trained or evaluated here. Call it in training_step, "
            "evaluation_step, prediction_step, augment, collate or a callback, or after "
            "run.windows()"
        )
    return _current


def current() -> Now | None:
    """Return the moment of the run. None if nothing is trained or evaluated."""
    return _current


def set_now(moment: Now | None) -> None:
    """Note the moment of the run."""
    global _current
    _current = moment


@contextmanager
def at(moment: Now | None) -> Iterator[None]:
    """Note the moment of the run for a block of code, and restore the note of before."""
    before = _current
    set_now(moment)
    try:
        yield
    finally:
        set_now(before)


# A loading process would keep the moment of its start, although the items have later moments.
os.register_at_fork(after_in_child=lambda: set_now(None))
