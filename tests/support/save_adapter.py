"""An exported adapter of a tiny language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer.commands.whole_model import build_whole
from trainer.language import Adapter, CausalLM


def save_adapter(folder: Path, model_folder: Path) -> None:
    """Write an adapter that changes what the model says, as an export would."""
    task = CausalLM(model=str(model_folder), data="", adapter=Adapter(r=2))
    model: Any = build_whole(task)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    task.save_extras(folder)
