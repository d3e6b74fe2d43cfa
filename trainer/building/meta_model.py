"""The values of a model on the meta device, which follow after sharding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..checkpoint.checksums import check_dtypes
from ..checkpoint.parts import Parts
from ..distributed.agreement import Agreement
from ..strategies.initial_values import InitialValues
from ..strategies.tensors import canonical_state
from ..task import Pretrained, Task


@dataclass(frozen=True, kw_only=True)
class MetaModel:
    """The sources of the values of a model on the meta device.

    Args:
        initial_values: draws the values that no file has.
        source: the folder of a pretrained model, or None if all values are drawn.
    """

    initial_values: InitialValues
    source: Pretrained | None

    @classmethod
    def of(cls, model: nn.Module, task: Task, seed: int, *, resumes: bool) -> MetaModel | None:
        """Give the buffers of a model that is not prepared yet their values.

        Args:
            model: on the meta device.
            task: names the pretrained model, and initializes modules.
            seed: of the whole training.
            resumes: the parameters' values come from a checkpoint.

        Returns:
            None if nothing else has to be done: a checkpoint has the values.

        Raises:
            CheckpointError: the pretrained folder is missing, or to read the files would round
                values.
        """
        source = None if resumes else task.pretrained(model)
        if source is not None:
            check_dtypes(Path(source.folder), source.names, dict(canonical_state(model)))

        initial_values = InitialValues(
            model, task.initialize, seed, stored=resumes or source is not None
        )
        if resumes:
            return None
        return cls(initial_values=initial_values, source=source)

    def fill(self, parts: Parts, agreement: Agreement) -> list[str]:
        """Give the prepared model its values. Collective: call on every rank.

        Returns:
            Notices about the pretrained model.

        Raises:
            CheckpointError: the pretrained folder does not hold this model.
            LaunchError: nothing gives a parameter its values.
        """
        names = {
            name
            for name, _, _, tensor in parts.strategy.named_tensors()
            if isinstance(tensor, nn.Parameter)
        }
        if self.source is not None:
            names = names.intersection(self.source.new)

        parts.strategy.fill(self.initial_values.draw(names))
        for shard, average in parts.averages:
            average.copy_(shard.tensor)

        if self.source is None:
            return []
        from ..checkpoint.restore import load_weights

        return load_weights(
            parts,
            Path(self.source.folder),
            agreement,
            names=self.source.names,
            without=self.source.new,
        )
