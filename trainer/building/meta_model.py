"""The values of a model on the meta device, which follow after sharding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from ..checkpoint.parts import Parts
from ..checkpoint.ranges import of_pretrained
from ..strategies.initial_values import InitialValues
from ..task import Pretrained, Task, new_names, sources_of


def fill_buffers(
    model: nn.Module, task: Task, seed: int, *, resumes: bool
) -> Callable[[Parts], list[str]] | None:
    """Give the buffers of a model that is not prepared yet their values.

    Return ``fill`` for the model. None if a checkpoint has the values of the parameters
    (``resumes``).
    """
    sources = [] if resumes else sources_of(task, model)
    of_pretrained(sources)  # a folder that is missing is refused before the model is sharded
    initial_values = InitialValues(model, task.initialize, seed, stored=resumes or bool(sources))
    return None if resumes else partial(fill, initial_values, sources)


def fill(initial_values: InitialValues, sources: Sequence[Pretrained], parts: Parts) -> list[str]:
    """Give a prepared model its values, and return notices. Collective.

    Args:
        initial_values: draws the values that no file has.
        sources: the folders of a pretrained model. Empty if all values are drawn.
    """
    names = {name for name, _ in parts.strategy.parameters(trainable=None)}
    if sources:
        names &= new_names(sources)

    parts.strategy.fill(initial_values.draw(names))
    for shard, average in parts.average.pairs:
        average.copy_(shard.tensor)

    if not sources:
        return []
    from ..checkpoint.restore import load_pretrained

    return load_pretrained(parts, sources)
