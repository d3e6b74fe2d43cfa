"""A model that was built on the meta device: how it gets its values once each rank has its own
parts of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..checkpoint import Parts
from ..checkpoint.checksums import check_dtypes
from ..checkpoint.restore import load_weights
from ..distributed.agreement import Agreement
from ..strategies.meta_device import Blank, is_on_meta
from ..strategies.tensors import canonical_state
from ..task import Pretrained, Task


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """A model that was built without values, on the meta device: how it gets them once it is
    divided over the ranks.
    """

    blank: Blank
    source: Pretrained | None

    @classmethod
    def of(cls, model: nn.Module, task: Task, seed: int, *, resumes: bool) -> MetaModel | None:
        """Give the buffers of a model that is not prepared yet their values; None where nothing
        else is to be done.

        Args:
            resumes: the parameters' values come from a checkpoint.

        Raises:
            CheckpointError: there is no such folder, or reading its files would round what stands
                there.
        """
        if not is_on_meta(model):
            return None
        source = None if resumes else task.pretrained(model)
        if source is not None:
            check_dtypes(Path(source.folder), source.names, dict(canonical_state(model)))
        blank = Blank(model, task.initialize, seed, stored=resumes or source is not None)
        return None if resumes else cls(source=source, blank=blank)

    def fill(self, parts: Parts, agreement: Agreement) -> list[str]:
        """Give the prepared model its values. Collective; returns notices.

        Raises:
            CheckpointError: the folder of the task does not hold this model.
            LaunchError: nobody gives a parameter a value.
        """
        names = {
            name
            for name, *_, tensor in parts.strategy.named_tensors()
            if isinstance(tensor, nn.Parameter)
        }
        source = self.source
        parts.strategy.fill(
            self.blank.first_values(names if source is None else names.intersection(source.new))
        )
        for shard, average in parts.averages or ():
            average.copy_(shard.tensor)
        if source is None:
            return []
        return load_weights(
            parts, Path(source.folder), agreement, names=source.names, without=source.new
        )
