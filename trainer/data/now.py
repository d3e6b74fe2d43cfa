"""The place of a run, for code that is given only a batch or an item: ``trainer.now()``.

A run notes its moment when ``run.windows()`` yields and while ``run.evaluate()`` measures. What
loads data reads ahead of the training, also in other processes, so there the moment travels with
the keys of the items (``augment.py``).

The note is one variable of the process, and none of the thread: activation checkpointing computes
layers again on a thread of autograd's, where the moment must be the same.
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

# The last number of the generator's seed: samples have theirs of (seed, epoch, index), and missing
# numbers count as zeros.
_OF_STEPS = 1


class Now(NamedTuple):
    """The place of a run, as ``trainer.now()`` returns it.

    It is the same on every layout and rank, in every micro-batch of a step, in loading processes,
    and after resuming.

    Args:
        step: number of the optimizer step that is being made, 1 for the first, as the log shows it.
            In an evaluation the steps that are done.
        epoch: epochs done at the step's beginning, as a fraction. Of a stream whole ones. All
            samples of the step belong to epoch ``int(epoch)``.
        samples: that all ranks have consumed before this step.
        total_steps: the step at which training ends.
        evaluation_set: name of the set that is measured, "" for a set without a name. None while
            training.
        seed: the config's.
        of_sample: in ``augment``, the generator that it was given.
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

        So each micro-batch and rank draws the same numbers: those of the step. In ``augment`` it is
        the one that was given, whose numbers are the sample's.
        """
        if self.of_sample is not None:
            return self.of_sample
        return generator_of(self.seed, self.step, 0, _OF_STEPS)


def first_moment(seed: int, total_steps: int = 1) -> Now:
    """Return the moment of the first step, for code that looks at a task without training it."""
    return Now(step=1, epoch=0.0, samples=0, total_steps=total_steps, seed=seed)


_current: Now | None = None


# torch.compile takes a number that it finds in a variable for a constant, and would compile anew in
# each step.
@not_compiled
def now() -> Now:
    """Return where the run is: step, epoch, and a generator of the step.

    For ``training_step``, ``evaluation_step``, ``prediction_step``, ``augment``, ``collate``,
    callbacks, and loops of your own. Of several runs in one process, the run counts that read a
    window or evaluated last. The moment of a window is ``window.now``.

    Raises:
        TrainerError: nothing is trained or evaluated.
    """
    if _current is None:
        raise TrainerError(
            "trainer.now(): nothing is trained or evaluated here; call it in training_step, "
            "evaluation_step, prediction_step, augment, collate or a callback, or behind "
            "run.windows()"
        )
    return _current


def current() -> Now | None:
    """Return the moment of the run. None if nothing is trained or evaluated."""
    return _current


def set_now(moment: Now | None) -> None:
    """Note where the run is from here on."""
    global _current
    _current = moment


@contextmanager
def at(moment: Now | None) -> Iterator[None]:
    """Note where the run is for a block of code, and afterwards what was noted before."""
    before = _current
    set_now(moment)
    try:
        yield
    finally:
        set_now(before)


# A loading process would go on with the moment of its start, also if its items have another.
os.register_at_fork(after_in_child=lambda: set_now(None))
