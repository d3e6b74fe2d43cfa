"""Small language models trained under a launch file, several runs in one job; the argument is JSON.

``runs`` gives the settings of each by name: ``model`` (of ``MODELS``, or a folder for a model on
the meta device), ``folder`` (of the runs), ``file`` (an accelerate YAML; none for one process), and
keys of the training config. Each leaves ``<folder>/<name>.json`` with its losses, norms and
evaluation, and what differs between ranks that must not.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trainer
from trainer import Data, Pretrained, Task, TrainConfig
from trainer.errors import TrainerError
from trainer.strategies.tensors import local

SMALL = {"vocab_size": 42, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True},
    "tied": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    "dropout": {"model_type": "llama", **SMALL, "attention_dropout": 0.2},
    "masked_norm": {"model_type": "llama", **SMALL},
    "masked_layer": {"model_type": "llama", **SMALL},
}
# Every second row or number of these stays as it is, by a hook on the gradient.
MASKED = {"masked_norm": "model.norm.weight", "masked_layer": "model.layers.0.mlp.up_proj.weight"}


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Predict tokens, as many in each example as it says: weights differ between batches."""

    model: str = "llama"

    def build_data(self) -> Data:
        drawn = torch.Generator().manual_seed(3)
        ids = torch.randint(0, 42, (40, 10), generator=drawn)
        length = torch.randint(3, 11, (40, 1), generator=drawn)
        rows = [
            {"ids": row, "labels": row.masked_fill(torch.arange(10) >= n, -100)}
            for row, n in zip(ids, length, strict=True)
        ]
        return Data(train=rows, evaluation=rows[:7])

    def build_model(self) -> nn.Module:
        from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

        if self.model in MODELS:
            config = dict(MODELS[self.model])
            model = AutoModelForCausalLM.from_config(
                CONFIG_MAPPING[config.pop("model_type")](**config)
            )
            if self.model in MASKED:
                weight = model.get_parameter(MASKED[self.model])
                mask = torch.arange(len(weight)).view(-1, *[1] * (weight.dim() - 1)) % 2
                weight.register_hook(lambda gradient: gradient * mask)
            return model
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.model))

    def pretrained(self, model: nn.Module) -> Pretrained | None:
        return Pretrained(folder=Path(self.model))

    def weight(self, batch: Any) -> Any:
        return (batch["labels"][:, 1:] != -100).sum()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        loss = model(input_ids=batch["ids"], labels=batch["labels"]).loss
        return loss, {"double": 2 * loss.detach()}


def train(
    name: str, folder: Path, file: str | None, *, model: str = "llama", **settings: Any
) -> dict[str, Any]:
    config = TrainConfig(
        **{
            "task": "tensor_parallel:Text",
            "output_dir": str(folder / name),
            "micro_batch_size": 4,
            "global_batch_size": 16,
            "lr": 0.01,
            "eps": 1e-4,  # far above rounding, of which Adam would take the sign
            "max_grad_norm": 0.3,  # below every norm
            "log_every": 1,
            **settings,
        }
    )
    run = trainer.Trainer(Text(model=model), config, trainer.launch(config, accel_config=file))
    rows = [dict(info.metrics or {}) for info in run.steps()]
    run.run.export(folder / name / "model")
    parts = [(key, local(tensor)) for key, tensor in run.run.strategy.parameters()]
    held = {
        key: hashlib.md5(part.detach().numpy().tobytes()).hexdigest()
        for key, part in parts
        if part.dim() == 1
    }
    state = hashlib.md5(torch.get_rng_state().numpy().tobytes()).hexdigest()
    found = {
        **{key: [row[key] for row in rows] for key in ("loss", "grad_norm", "double")},
        "evaluation": run.run.last_evaluation,
        "notices": run.run.facts["notices"],
        "model_class": type(run.run.model).__name__,
        "elements": sum(part.numel() for _, part in parts),
        "norms": run.run.agreement.gather(
            {key: value for key, value in held.items() if key.endswith("norm.weight")}
        ),
        "random": run.run.agreement.gather(state),
    }
    run.run.close()
    return found


def main() -> None:
    told = json.loads(sys.argv[-1])
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, settings in told["runs"].items():
        try:
            found = train(name, folder, told["file"], **settings)
        except TrainerError as error:
            found = {"error": str(error)}
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    trainer.run_and_exit(main)
