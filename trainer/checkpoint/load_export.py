"""Loading an exported model without a run."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from ..errors import CheckpointError
from .export import MODEL_FILE


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built model. All names and shapes must agree.

    Raises:
        CheckpointError: names or shapes differ, or there is no model.
    """
    from safetensors.torch import load_model

    try:
        load_model(model, Path(directory) / MODEL_FILE)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{directory}: does not hold this model: {reason}") from None
