"""Tasks and a callback for ``same_bits``: layers of many kinds, an error, and bits that are flipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trainer
from trainer import Callback, Data, Run, StepInfo, Task
from trainer.data.now import current
from trainer.strategies.tensors import local

SAMPLES = 47


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


class Recomputed(Cross):
    """The same with layers that the backward pass computes again, behind a frozen layer."""

    def build_model(self) -> nn.Module:
        model = Recomputing()
        model.encoder.requires_grad_(False)
        return model


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
    bit: int = 8

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
