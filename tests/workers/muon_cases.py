"""Tasks that are trained with Muon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import trainer
from trainer import Data, Plan, Task

VOCABULARY = 48


@dataclass(frozen=True, kw_only=True)
class SmallLlama(Task):
    """A Llama with grouped keys on random texts.

    Args:
        lora: only adapters and the output layer are trained.
    """

    lora: bool = False

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(3)
        texts = torch.randint(0, VOCABULARY, (120, 12), generator=generator)
        return Data(train=list(texts.sort(dim=1).values))

    def build_model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=72,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        model = AutoModelForCausalLM.from_config(config)
        if not self.lora:
            return model
        from peft import LoraConfig, get_peft_model

        modules = {"target_modules": ["q_proj"], "modules_to_save": ["up_proj"]}
        return get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **modules))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(input_ids=batch, labels=batch).loss


class Mixture(nn.Module):
    """Experts in a parameter of three dimensions, behind a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 10).requires_grad_(False)
        self.router = nn.Parameter(torch.randn(10, 3) / 3)
        self.experts = nn.Parameter(torch.randn(3, 10, 7) / 3)
        self.unused = nn.Linear(7, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.frozen(x)
        parts = (hidden @ self.router).softmax(-1)
        return self.head(torch.einsum("bi,eij,be->bj", hidden, self.experts, parts).tanh())


@dataclass(frozen=True, kw_only=True)
class Experts(Task):
    """Classes of random features.

    Args:
        broken: the step whose gradients are not finite.
    """

    broken: int | None = None

    def build_data(self) -> Data:
        features = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
        return Data(train=[{"x": x, "label": x[:4].argmax()} for x in features])

    def build_model(self) -> nn.Module:
        return Mixture()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss = F.cross_entropy(model(batch["x"]), batch["label"])
        return loss * (float("nan") if trainer.now().step == self.broken else 1.0)


class OwnMuon(SmallLlama):
    """As people write it for a single process."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=plan.lr)
