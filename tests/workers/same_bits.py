"""Run on one or several ranks: short trainings with ``same_bits``, and all of their numbers.

    ranks ... tests/workers/same_bits.py FOLDER CASE,CASE,... [ACCEL_CONFIG]

Leaves FOLDER/found.json: by case the losses, norms and evaluations by step, a hash of each exported
tensor, and what ran.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from of_all_ranks import leave
from safetensors.torch import load_file
from torch import Tensor, nn

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.launching import launch

# 12 micro-batches a step, which 1, 2, 3 and 4 ranks share. The second step of an epoch has 23
# samples: 11 micro-batches and a half.
GLOBAL, MICRO, SAMPLES = 24, 2, 47


class Layer(nn.Module):
    """Reads the memory as the layers beside it do, and draws random numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.across = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.scaled = nn.GroupNorm(2, width)
        self.wide = nn.Linear(width, 3 * width)
        self.back = nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        normed = self.norm(hidden)
        attended, _ = self.attention(normed, normed, normed, need_weights=False)
        hidden = hidden + attended
        read, _ = self.across(hidden, memory, memory, need_weights=False)
        hidden = self.scaled((hidden + read).transpose(1, 2)).transpose(1, 2)
        return hidden + self.dropout(self.back(F.relu(self.wide(hidden)) * memory.mean()))


class Crossing(nn.Module):
    def __init__(self, width: int = 18) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.tanh(self.encoder(x))
        hidden = memory * self.scale
        for layer in self.layers:
            hidden = layer(hidden, memory)
        return self.head(hidden)


@dataclass(frozen=True, kw_only=True)
class Cross(Task):
    """Layers that share an input (cross attention), odd sizes, a scalar, dropout."""

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(SAMPLES, 6, 5, generator=generator)
        items = [{"x": row, "y": (row[:, :1] * row[:, 1:2]).tanh()} for row in x]
        return Data(train=items, evaluation=items[:11])

    def build_model(self) -> nn.Module:
        return Crossing()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = (model(batch["x"]) - batch["y"]).square().mean()
        return loss


@dataclass(frozen=True, kw_only=True)
class Tied(Task):
    """A Llama whose embedding is its head, with dropout, and a loss over counted tokens."""

    def build_data(self) -> Data:
        ids = torch.randint(1, 61, (SAMPLES, 9), generator=torch.Generator().manual_seed(1))
        ids[::3, 5:] = 0
        return Data(train=ids, evaluation=ids[:11])

    def build_model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 26, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(
            vocab_size=61, tie_word_embeddings=True, attention_dropout=0.1, **sizes, **heads
        )
        model: nn.Module = LlamaForCausalLM(config)
        return model

    def weight(self, batch: Any) -> float:
        return int((batch[:, 1:] > 0).sum())

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch[:, :-1]).logits.flatten(0, 1)
        return F.cross_entropy(logits, batch[:, 1:].flatten(), ignore_index=0)


CASES: dict[str, dict[str, Any]] = {
    "cross": {"task": "same_bits:Cross"},
    "cross bf16": {"task": "same_bits:Cross", "mixed_precision": "bf16"},
    "tied": {"task": "same_bits:Tied"},
    "tied bf16": {"task": "same_bits:Tied", "mixed_precision": "bf16"},
    "off": {"task": "same_bits:Cross", "same_bits": False},
    "sgd": {"task": "same_bits:Cross", "optimizer": "sgd", "lr": 0.05},
    "average": {"task": "same_bits:Cross", "ema_decay": 0.9, "optimizer": "adam"},
}


def configured(folder: Path, case: str, **settings: Any) -> TrainConfig:
    given = {
        "output_dir": str(folder),
        "max_steps": 3,
        "log_every": 1,
        "eval_every": 2,
        "micro_batch_size": MICRO,
        "global_batch_size": GLOBAL,
        "max_grad_norm": 0.5,
        "lr": 1e-2,
        "same_bits": True,
        "sanity_evaluation": False,
        "keep_last": 0,
        **CASES[case],
        **settings,
    }
    return TrainConfig(**given)


def train(config: TrainConfig, file: str | None) -> dict[str, Any]:
    """Train as configured, and return all numbers of the run."""
    task: Task = (Tied if config.task.endswith("Tied") else Cross)()
    made = Trainer(task, config, launch(config, accel_config=file))
    made.fit()
    made.run.close()
    return {
        "class": type(made.run.model).__name__,
        "world": made.run.plan.world_size,
        **numbers(config),
    }


def numbers(config: TrainConfig) -> dict[str, Any]:
    """Return losses, norms, evaluations and the hashes of a run's exported weights."""
    folder = Path(config.output_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights: dict[str, Tensor] = {}
    for part in sorted((folder / "model").glob("*.safetensors")):
        weights |= load_file(part)
    return {
        "losses": {row["step"]: row["loss"].hex() for row in rows if "loss" in row},
        "norms": {row["step"]: row["grad_norm"].hex() for row in rows if "loss" in row},
        "evaluations": {row["step"]: row["eval/loss"].hex() for row in rows if "eval/loss" in row},
        "weights": {
            name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            for name, tensor in weights.items()
        },
    }


def main() -> None:
    folder, cases, *files = Path(sys.argv[1]), sys.argv[2].split(","), *sys.argv[3:]
    found = {
        case: train(configured(folder / case, case), files[0] if files else None) for case in cases
    }
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
