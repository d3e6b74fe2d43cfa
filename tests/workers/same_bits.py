"""Run on one or several ranks: short trainings with ``same_bits``, and all of their numbers.

    ranks ... tests/workers/same_bits.py FOLDER CASE,CASE,... [ACCEL_CONFIG] [KEY=VALUE ...]
    ranks ... tests/workers/same_bits.py replay RUN --step N [--accel_config ACCEL_CONFIG]

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
import torch.distributed as dist
import torch.nn.functional as F
from of_all_ranks import leave
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.append("examples")  # digits_cnn

import trainer
from trainer import Callback, Data, Run, StepInfo, Task, TrainConfig, Trainer
from trainer.commands.replay import replay
from trainer.config.named_class import find_class
from trainer.config.validate import build
from trainer.data.now import current
from trainer.errors import Origin
from trainer.launching import launch
from trainer.strategies.tensors import local

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
            hidden = self.call(layer, hidden, memory)
        return self.head(hidden)

    def call(self, layer: nn.Module, hidden: Tensor, memory: Tensor) -> Tensor:
        return layer(hidden, memory)


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


class Recomputing(Crossing):
    def call(self, layer: nn.Module, hidden: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = checkpoint(layer, hidden, memory, use_reentrant=False)
        return result


@dataclass(frozen=True, kw_only=True)
class Recomputed(Cross):
    """The same with layers that the backward pass computes again, behind a frozen layer."""

    def build_model(self) -> nn.Module:
        model = Recomputing()
        model.encoder.requires_grad_(False)
        return model


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


@dataclass(frozen=True, kw_only=True)
class Translator(Task):
    """A T5: its decoder's layers read the encoder's output, both embed by the head's weights."""

    def build_data(self) -> Data:
        rows = torch.randint(1, 61, (SAMPLES, 12), generator=torch.Generator().manual_seed(2))
        rows[::3, 4:6] = 0
        return Data(train=rows, evaluation=rows[:11])

    def build_model(self) -> nn.Module:
        from transformers import T5Config, T5ForConditionalGeneration

        sizes = {"d_model": 16, "d_kv": 6, "d_ff": 26, "num_layers": 2, "num_heads": 3}
        model: nn.Module = T5ForConditionalGeneration(
            T5Config(vocab_size=61, decoder_start_token_id=0, **sizes)
        )
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        source, target = batch[:, :6], batch[:, 6:].contiguous()
        mask = source > 0
        loss: Tensor = model(input_ids=source, attention_mask=mask, labels=target).loss
        return loss


@dataclass(frozen=True, kw_only=True)
class WrongUnderDDP(Cross):
    """The same, with an error that shows under a strategy alone, from the second step on."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().training_step(model, batch)
        wrong = type(model).__name__ == "DistributedDataParallel" and trainer.now().step > 1
        return loss * 1.000001 if wrong else loss


@dataclass(frozen=True, kw_only=True)
class Planted(Cross):
    """The same, with a wrong bit in a gradient: of a micro-batch of a rank, in a step."""

    name: str = "layers.1.wide.weight"
    rank: int = 1
    step: int = 4
    micro: int = 2
    bit: int = 3

    def build_model(self) -> nn.Module:
        model = super().build_model()
        seen = [0]  # backward passes of the step

        def flip(gradient: Tensor) -> Tensor:
            rank = dist.get_rank() if dist.is_initialized() else 0
            moment = current()  # None while DDP arranges its buckets
            if moment is None or (rank, moment.step) != (self.rank, self.step):
                return gradient
            seen[0] += 1
            return flipped(gradient, self.bit) if seen[0] == self.micro + 1 else gradient

        model.get_parameter(self.name).register_hook(flip)
        return model


def flipped(values: Tensor, bit: int) -> Tensor:
    """Return a copy with a bit of the element in the middle changed."""
    copy = values.detach().clone()
    middle = copy.view(-1)[copy.numel() // 2 :][:1]
    middle.view(torch.int32).bitwise_xor_(1 << bit)
    return copy


class Flip(Callback):
    """Changes a bit of this rank's part of a weight, or of its state, behind a step."""

    def __init__(self, what: str, name: str, rank: int, step: int, bit: int = 3) -> None:
        self.what, self.name, self.rank, self.step, self.bit = what, name, rank, step, bit

    @torch.no_grad()
    def on_step(self, run: Run, info: StepInfo) -> None:
        if (info.step, run.accelerator.process_index) != (self.step, self.rank):
            return
        [shard] = [shard for shard in run.strategy.shards() if shard.name == self.name]
        values = shard.tensor
        if self.what != "weight":
            assert shard.state_key is not None
            state = local(run.strategy.optimizer.state[shard.state_key][self.what]).view(-1)
            values = state[shard.state_offset :][: values.numel()]
        # Past torch, which counts changes in place, as a fault of hardware does.
        values.numpy().view("int32")[values.numel() // 2] ^= 1 << self.bit


# Micro-batches of a step: 1, 2, 3 or 6 on each of 1 to 4 ranks.
BY = sorted({each * world for each in (1, 2, 3, 6) for world in (1, 2, 3, 4)})
# The names of files in the folder ``given`` beside FOLDER, which the test has filled.
FILES = {"model", "data", "cache_dir"}
LANGUAGE = {
    **{"model": "llama", "data": "texts.jsonl", "cache_dir": "cache"},
    **{"evaluation": 0.2, "sequence_length": 64},
}
PAIRS = {"data": "pairs.jsonl", "sft_weight": 0.2}
_CHANGED = "layers.0.back.weight"
CASES: dict[str, dict[str, Any]] = {
    "cross": {"task": "same_bits:Cross"},
    "tied": {"task": "same_bits:Tied"},
    **{
        f"changed {what}": {
            "task": "same_bits:Cross",
            "max_steps": 5,
            "save_every": 2,
            "keep_last": 9,
            "callbacks": [
                {
                    "same_bits:Flip": {
                        "what": what,
                        "name": _CHANGED,
                        "rank": 1,
                        "step": 3,
                        "bit": bit,
                    }
                }
            ],
        }
        for what, bit in (("weight", 0), ("exp_avg", 12))
    },
    **{
        f"by {number}": {"task": "same_bits:Cross", "global_batch_size": 2 * number}
        for number in BY
    },
    "recomputed": {"task": "same_bits:Recomputed"},
    "t5": {"task": "same_bits:Translator"},
    "digits": {"task": "digits_cnn:DigitsCNN", "task_settings": {"width": 8}},
    "lora": {
        "task": "trainer.language:CausalLM",
        "task_settings": {**LANGUAGE, "adapter": {"r": 4, "dropout": 0.1}},
    },
    "dpo": {"task": "trainer.language:DPO", "task_settings": {**LANGUAGE, **PAIRS}},
    "dpo lora": {
        "task": "trainer.language:DPO",
        "task_settings": {**LANGUAGE, **PAIRS, "adapter": {"r": 4}},
    },
    "saved": {"task": "same_bits:Cross", "max_steps": 5, "save_every": 2, "keep_last": 9},
    "planted": {"task": "same_bits:Planted", "max_steps": 5, "save_every": 2, "keep_last": 9},
    "off": {"task": "same_bits:Cross", "same_bits": False},
    "sgd": {"task": "same_bits:Cross", "optimizer": "sgd", "lr": 0.05},
    "muon": {"task": "same_bits:Cross", "optimizer": "muon"},
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
        **CASES[case.removesuffix(" bf16")],
        **({"mixed_precision": "bf16"} if case.endswith(" bf16") else {}),
        **settings,
    }
    place = folder.parents[1] / "given"
    given["task_settings"] = {
        key: str(place / value) if key in FILES else value
        for key, value in given.get("task_settings", {}).items()
    }
    return TrainConfig(**given)


def train(config: TrainConfig, file: str | None) -> dict[str, Any]:
    """Train as configured, and return all numbers of the run."""
    cls = find_class(config.task, Task, Origin("task"))
    task = build(cls, config.task_settings, Origin("task_settings").named)
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
    bits = folder / "digests.jsonl"
    digests = [json.loads(line) for line in bits.open()] if config.same_bits else []
    weights: dict[str, Tensor] = {}
    for part in sorted((folder / "model").glob("*.safetensors")):
        weights |= load_file(part)
    return {
        "losses": {row["step"]: row["loss"].hex() for row in rows if "loss" in row},
        "norms": {row["step"]: row["grad_norm"].hex() for row in rows if "loss" in row},
        "evaluations": {row["step"]: row["eval/loss"].hex() for row in rows if "eval/loss" in row},
        "digests": {
            row["step"]: row["micro_batches"] + row["gradients"] + row["weights"]
            for row in digests
            if "step" in row
        },
        "weights": {
            name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            for name, tensor in weights.items()
        },
    }


def main() -> None:
    if sys.argv[1] == "replay":
        replay(sys.argv[2:])
        return
    folder, cases = Path(sys.argv[1]), sys.argv[2].split(",")
    files = [word for word in sys.argv[3:] if "=" not in word]
    words = [word.split("=") for word in sys.argv[3:] if "=" in word]
    more = {key: int(text) if text.isdigit() else text for key, text in words}
    found = {
        case: train(configured(folder / case, case, **more), files[0] if files else None)
        for case in cases
    }
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
