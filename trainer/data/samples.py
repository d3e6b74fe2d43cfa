"""Some samples of each data set, compared over the ranks and between a run and its resumption.

Sizes alone are not enough: ``rows[rank::world_size]`` has the same size on every rank, and class
numbers that were taken from a set are another permutation in each process. So checksums of three
samples and of the batch of each are compared before the first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..text import listed
from .augment import copied
from .batches import TrainData
from .digest import digest
from .evaluation import EvaluationBatches
from .now import at
from .rng import temporarily_seeded
from .worker_signals import ignore_signals

CONTENT = "the content of "
BATCH = "the batch of "


@dataclass(frozen=True)
class SampledSet:
    """A data set of which three samples are read.

    A stream is not read: these samples would be lost for the training. A loading process reads the
    samples if loading processes read those of the training: a file that the data set opens at the
    first read (HDF5, LMDB) must not be open when processes are forked.

    Args:
        name: for messages: ``Data.train``.
        data: the data set, with the way from samples to batches.
        version: ``Data.version``. "" for none.
    """

    name: str
    data: TrainData | EvaluationBatches
    version: str = ""

    def read(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the size, the version, and checksums of three samples.

        Each has a name, a text, and whether the text is random: another under a second seed.
        """
        size = self.data.size
        if size is None:
            yield f"the kind of {self.name}", "a stream", False
            return

        yield f"the number of samples of {self.name}", str(size), False
        yield f"the version of {self.name}", self.version, False
        own_order = getattr(self.data.items.dataset, "own_order", None)
        if own_order:
            yield f"the order of {self.name}", own_order.text, False
        itself: Any = self
        loader = DataLoader(
            itself,
            batch_size=None,
            sampler=sorted({0, size // 2, size - 1}),
            num_workers=min(1, self.data.workers),
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # or it would draw from the process's generator
        )
        for of_sample in loader:
            yield from of_sample

    def __getitem__(self, index: int) -> list[tuple[str, str, bool]]:
        """Return the checksums of a sample and of its batch."""
        again = self._checksums(1, index).items()
        return [(*fact, fact not in again) for fact in self._checksums(0, index).items()]

    def _checksums(self, draw: int, index: int) -> dict[str, str]:
        items = self.data.items
        name = f"sample {index} of {self.name}"
        with temporarily_seeded(draw, index), at(items.moment(1, 0.0, 0)):
            [sample] = items.read([index])
            checksums = {CONTENT + name: f"{digest(sample):08x}"}
            # A collate may leave out the sample, and fail without any. It may change in place an
            # item that the data set keeps, so it gets a copy.
            with contextlib.suppress(Exception):
                batch = self.data.collate([items.augmented(copied(sample), 0, index)])
                checksums[BATCH + name] = f"{digest(batch):08x}"
            return checksums


class Sampled:
    """The content of three samples of each data set, which must be the same on every rank.

    Some libraries of augmentations draw from their own generators, which differ between ranks. That
    is no error: samples that are random, on any rank, are left out. If a sample is random, all
    samples of the set may be. Collective: made on every rank.

    Args:
        sets: the data sets, the training set first. Without sets nothing is compared.
        gather: collects a value from each rank, in rank order. Collective.

    Attributes:
        facts: checksums by names such as ``the batch of sample 3 of Data.train``.
    """

    def __init__(self, sets: Sequence[SampledSet], gather: Callable[[Any], list[Any]]) -> None:
        read = [fact for sampled_set in sets for fact in sampled_set.read()]
        changed = {_kind(name) for name, _, is_random in read if is_random}
        random = {*chain(*gather(changed))}
        self._first = {name: first for name, first, _ in read}
        self.facts = {name: text for name, text in self._first.items() if _kind(name) not in random}

    def state(self) -> dict[str, str]:
        """Return facts of the training set and of the samples, as JSON, for checkpoints.

        Also of samples that are random: those of a later run may not be.
        """
        return {
            fact: text
            for fact, text in self._first.items()
            if fact.endswith("Data.train") and not fact.startswith(BATCH)
        }

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """Describe how the training set differs from the set whose ``state`` is given.

        A change of size is reported elsewhere, and other samples are read then.
        """
        changed = [name for name, text in self.facts.items() if before.get(name, text) != text]
        if not changed or "the number of samples of Data.train" in changed:
            return []
        return [f"the data is another one: {listed(changed, 2)} changed"]


def _kind(fact: str) -> str:
    """Return the name of a fact without the number of its sample."""
    return " ".join(word for word in fact.split() if not word.isdigit())
