"""A source of a mixture: files with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ..config.paths import LocalPath
from ..text import several


@dataclass(frozen=True, kw_only=True)
class WeightedSource:
    """Files or data sets of the Hub, as ``data`` names them, with a weight.

    Args:
        weight: the share of rows or tokens (``weight_by``), relative to the other weights.
        passes: how often the rows are read. None: without end, and ``max_steps`` ends the run.
        split: behind the ``@`` of each path: ``train[:1000]``.
        max_samples: documents or pairs that are taken, from the first on. None: all.
        name: in the log: ``mix/NAME/share``. By default the name of the first file.
    """

    path: LocalPath | list[LocalPath]
    weight: Annotated[float, Field(gt=0)] = 1.0
    passes: Annotated[int, Field(ge=1)] | None = None
    max_samples: Annotated[int, Field(ge=1)] | None = None
    split: str | None = None
    name: str | None = None

    @property
    def paths(self) -> list[str]:
        """Return the paths, each with the split."""
        return [f"{path}@{self.split}" if self.split else path for path in several(self.path)]
