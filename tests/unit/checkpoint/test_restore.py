"""What a checkpoint must hold so that a training can be set to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_process import checkpoint, fit
from resuming import Odd
from torch import nn

from trainer import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


class HeadFirst(Odd):
    """The same model, but the shared parameter comes first under its other name."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model._modules = {"head": model.head, **model._modules}
        return model


def test_a_shared_parameter_under_its_other_name_is_refused_at_resume(tmp_path: Path) -> None:
    """Its optimizer state stands under the first name, and would be lost without a word."""
    fit(tmp_path / "run", max_steps=2)
    path = checkpoint(tmp_path / "run", 2)
    said = "does not hold this model: head.weight is called embedding.weight there"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "new", HeadFirst(), resume=str(path), allow_config_change=True)
    fit(tmp_path / "weights", HeadFirst(), max_steps=2, weights=str(path))
