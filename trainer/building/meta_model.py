"""The values of a model on the meta device, which follow after sharding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ..checkpoint.parts import Parts
from ..checkpoint.ranges import of_pretrained
from ..strategies.initial_values import InitialValues
from ..task import Pretrained, Task, new_names, sources_of


class MetaModel(NamedTuple):
    """The sources of the values of a model on the meta device.

    Args:
        initial_values: draws the values that no file has.
        sources: the folders of a pretrained model. Empty if all values are drawn.
    """

    initial_values: InitialValues
    sources: Sequence[Pretrained]

    @classmethod
    def of(cls, model: nn.Module, task: Task, seed: int, *, resumes: bool) -> MetaModel | None:
        """Give the buffers of a model that is not prepared yet their values.

        None if a checkpoint has the values of the parameters (``resumes``).
        """
        sources = [] if resumes else sources_of(task, model)
        of_pretrained(sources)  # a folder that is missing is refused before the model is sharded
        initial_values = InitialValues(
            model, task.initialize, seed, stored=resumes or bool(sources)
        )
        if resumes:
            return None
        return cls(initial_values=initial_values, sources=sources)

    def fill(self, parts: Parts) -> list[str]:
        """Give the prepared model its values, and return notices. Collective."""
        names = {name for name, _ in parts.strategy.parameters(trainable=None)}
        if self.sources:
            names &= new_names(self.sources)

        parts.strategy.fill(self.initial_values.draw(names))
        for shard, average in parts.average.pairs:
            average.copy_(shard.tensor)

        if not self.sources:
            return []
        from ..checkpoint.restore import load_pretrained

        return load_pretrained(parts, self.sources)
