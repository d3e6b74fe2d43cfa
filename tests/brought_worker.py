"""Run by torchrun under one layout: models and tasks as users bring them, one training after the other.

    torchrun ... tests/brought_worker.py '{"file": {"accel_config": ...}, "folder": ..., "names": [...]}'

Each leaves ``<folder>/<name>.json`` with its losses, norms, evaluation and notices, or the error that ended it, and
its exported model. All in one process: a launch costs more than a training of this size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import trainer
from trainer import Data, Plan, Task, TrainConfig, Trainer, TrainState
from trainer.launching import Launched, launch

GLOBAL_BATCH, STEPS = 8, 6


class Numbers:
    """Eight random numbers a sample, their sum to be predicted, and the sample's number."""

    def __init__(self, size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": self.x[at], "y": self.x[at].sum(0, keepdim=True), "at": torch.tensor(at)}


@dataclass(frozen=True, kw_only=True)
class Plain(Task):
    size: int = 64

    def build_data(self) -> Data:
        return Data(train=Numbers(self.size), evaluation=Numbers(10, seed=1))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"]), batch["y"])


class Unused(Plain):
    """A layer that the loss never reaches; weight decay moves it, as it moves one of gradient zero."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def build_model(self) -> nn.Module:
        return self.Model()


class OnSomeRanks(Plain):
    """Two heads of one shape: a few samples go through the second, the others through the first."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            hidden, second = self.body(x).tanh(), at % 8 == 0
            output = torch.zeros(len(x), 1)
            for head, chosen in ((self.one, ~second), (self.two, second)):
                if chosen.any():
                    output[chosen] = head(hidden[chosen])
            return output

    def build_model(self) -> nn.Module:
        return self.Model()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"], batch["at"]), batch["y"])


class Later(Plain):
    """A layer that the loss reaches from the third forward pass on, evaluations not counted."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.passes = nn.Linear(8, 1), nn.Linear(8, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += self.training
            return self.one(x) + (self.two(x) if self.passes > 2 else 0)

    def build_model(self) -> nn.Module:
        return self.Model()


class Scalar(Plain):
    """A learnt scalar, as CLIP's logit_scale, and one that is frozen."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.fixed = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            assert self.scale.shape == (), "the model sees a scalar"
            return self.layer(x) * self.scale.exp() * self.fixed

    def build_model(self) -> nn.Module:
        return self.Model()


class Empty(Plain):
    """A parameter without elements."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
        return model


class Narrow(Plain):
    """Weights of bfloat16, as from_pretrained gives them, and a step that casts its inputs to them."""

    def build_model(self) -> nn.Module:
        return super().build_model().to(torch.bfloat16)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"].bfloat16()).float(), batch["y"])


class Bent(Plain):
    """A convolution in channels_last, and a transposed weight."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 1)
        ).to(memory_format=torch.channels_last)
        model[3].weight = nn.Parameter(torch.randn(4, 3).t())
        return model


class HalfOptimized(Plain):
    """An optimizer over the head only, while the rest would learn as well."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return SGD(model[2].parameters(), lr=plan.lr)  # type: ignore[index, union-attr]


class FrozenInOptimizer(Plain):
    """A frozen layer among the optimizer's parameters, one group of them all its own."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0].requires_grad_(False)
        return model

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=plan.lr)  # type: ignore[index, union-attr]


OUTSIDE = nn.Parameter(torch.ones(3))


class Outside(Plain):
    """A parameter in the optimizer that is not in the model."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return SGD([*model.parameters(), OUTSIDE], lr=plan.lr)


class Names(Plain):
    """Metrics by domain: each batch reports those that it holds, and one sample alone has a name of its own."""

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        at = batch["at"].double()
        found: dict[str, Any] = {"all": at}
        for name, mask in (("low", at < 5), ("high", at >= 5), ("rare", at == 9)):
            if mask.any():
                found[name] = at[mask]
        return found


class Reports(Plain):
    """Values beside the loss: a mean, a sum with a weight, and one for each example."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        output = model(batch["x"])
        loss = F.mse_loss(output, batch["y"])
        at = batch["at"].double()
        return loss, {
            "error": (output - batch["y"]).abs().mean().detach(),
            "at": at,
            "high": (at[at > 32].sum(), (at > 32).sum()),
        }


class Edges(Plain):
    """A batch whose first tensor does not begin with the examples."""

    def build_data(self) -> Data:
        def collate(items: Any) -> dict[str, Tensor]:
            return {"edges": torch.zeros(2, 5), **torch.utils.data.default_collate(items)}

        return Data(train=Numbers(self.size), evaluation=Numbers(10, seed=1), collate=collate)


class FrozenNorm(Plain):
    """A BatchNorm that build_model left in evaluation mode: its statistics stay, and its weights learn."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        model[1].eval()
        return model


class Buffers(Plain):
    """Large whole numbers, flags, and counters that are replaced instead of changed; some samples weigh nothing."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.register_buffer("large", torch.tensor([2**60 + 1, 7]))
            self.register_buffer("flag", torch.tensor(True))
            self.register_buffer("replaced", torch.zeros(()))
            self.register_buffer("changed", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.replaced = self.replaced + len(x)
                self.changed += len(x)
            return self.layer(x)

    def build_model(self) -> nn.Module:
        return self.Model()

    def weight(self, batch: Any) -> float:
        return float((batch["at"] % 64 >= 8).sum())

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        counts = (batch["at"] % 64 >= 8).float()
        return ((model(batch["x"]) - batch["y"])[:, 0] ** 2 * counts).sum() / counts.sum()


class ShapeOne(Plain):
    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch).reshape(1)


class NoLoss(Plain):
    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return (model(batch["x"]) - batch["y"])[:, 0] ** 2


class TensorSummary(Plain):
    def summarize(self, metrics: dict[str, float]) -> Mapping[str, Any]:
        return {name: torch.tensor(value) for name, value in metrics.items()}


class Patience(Plain):
    """Evaluations that only get worse."""

    def summarize(self, metrics: dict[str, float]) -> Mapping[str, float]:
        object.__setattr__(self, "seen", getattr(self, "seen", 0) + 1)
        return {"loss": float(self.seen)}  # type: ignore[attr-defined]


def hugging_face(kind: str) -> Callable[[], nn.Module]:
    """Small models as people build them."""

    def build() -> nn.Module:
        from transformers import (
            AutoModelForCausalLM,
            AutoModelForMaskedLM,
            AutoModelForSequenceClassification,
            BertConfig,
            GPT2Config,
            LlamaConfig,
        )

        small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        if kind == "llama":
            config: Any = LlamaConfig(vocab_size=40, num_key_value_heads=2, max_position_embeddings=32, **small)
            return AutoModelForCausalLM.from_config(config)
        if kind == "llama_tied":
            config = LlamaConfig(vocab_size=40, num_key_value_heads=2, tie_word_embeddings=True, **small)
            return AutoModelForCausalLM.from_config(config)
        if kind == "gpt2":
            return AutoModelForCausalLM.from_config(
                GPT2Config(
                    vocab_size=40,
                    n_embd=16,
                    n_layer=2,
                    n_head=2,
                    n_positions=32,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                )
            )
        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = BertConfig(vocab_size=40, max_position_embeddings=32, num_labels=3, **off, **small)
        if kind == "bert_masked":
            return AutoModelForMaskedLM.from_config(config)
        return AutoModelForSequenceClassification.from_config(config)

    return build


@dataclass(frozen=True, kw_only=True)
class Language(Task):
    """A transformers model from a configuration, or from a folder (``from_pretrained``)."""

    kind: str = "llama"
    folder: str = ""

    def build_data(self) -> Data:
        ids = torch.randint(0, 40, (32, 10), generator=torch.Generator().manual_seed(3))
        return Data(train=[{"ids": row, "label": row.sum() % 3} for row in ids])

    def build_model(self) -> nn.Module:
        if self.kind.startswith("lora"):
            from peft import LoraConfig, get_peft_model

            base = hugging_face("llama_tied" if self.kind == "lora_saved" else "llama")()
            saved = ["lm_head"] if self.kind == "lora_saved" else None
            if self.kind == "lora_narrow":
                base.to(torch.bfloat16)
            targets = ["q_proj", "v_proj"]
            settings = LoraConfig(r=4, target_modules=targets, modules_to_save=saved, task_type="CAUSAL_LM")
            return get_peft_model(base, settings)
        if not self.folder:
            return hugging_face(self.kind)()
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(self.folder)
        assert model.dtype == torch.bfloat16, "as the file has it"
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        labels = batch["label"] if self.kind == "bert" else batch["ids"]
        return model(input_ids=batch["ids"], labels=labels).loss


PRETRAINED: list[str] = []  # the folder of a small Llama of bfloat16
CASES: dict[str, tuple[Callable[..., Task], dict[str, Any]]] = {
    "plain": (Plain, {}),
    "unused": (Unused, {"find_unused_parameters": True, "weight_decay": 0.1}),
    "unused_unsaid": (Unused, {"weight_decay": 0.1}),
    "on_some_ranks": (OnSomeRanks, {"find_unused_parameters": True}),
    "on_some_ranks_accumulated": (OnSomeRanks, {"find_unused_parameters": True, "micro_batch_size": 2}),
    "on_some_ranks_unsaid": (OnSomeRanks, {}),
    "later_unsaid": (Later, {}),
    "scalar": (Scalar, {}),
    "empty": (Empty, {}),
    "narrow": (Narrow, {}),
    "narrow_bf16": (Narrow, {"mixed_precision": "bf16"}),
    "bent": (Bent, {}),
    "half_optimized": (HalfOptimized, {"max_grad_norm": 0.5}),
    "frozen_in_optimizer": (FrozenInOptimizer, {}),
    "outside": (Outside, {}),
    "names": (Names, {"evaluation_batch_size": 2}),
    "reports": (Reports, {}),
    "edges": (Edges, {"evaluation_batch_size": 3}),
    "frozen_norm": (FrozenNorm, {}),
    "buffers": (Buffers, {"micro_batch_size": 2, "max_steps": 8}),
    "shape_one": (ShapeOne, {}),
    "no_loss": (NoLoss, {}),
    "tensor_summary": (TensorSummary, {}),
    "patience": (
        Patience,
        {"eval_every": 2, "best_metric": "eval/loss", "early_stop_patience": 2, "max_steps": 20},
    ),
    "llama": (lambda: Language(kind="llama"), {}),
    "llama_tied": (lambda: Language(kind="llama_tied"), {}),
    "gpt2": (lambda: Language(kind="gpt2"), {}),
    "bert": (lambda: Language(kind="bert"), {}),
    "pretrained": (lambda: Language(folder=PRETRAINED[0]), {}),
    "pretrained_bf16": (lambda: Language(folder=PRETRAINED[0]), {"mixed_precision": "bf16"}),
    "lora": (lambda: Language(kind="lora"), {}),
    "lora_bf16": (lambda: Language(kind="lora"), {"mixed_precision": "bf16"}),
    "lora_narrow": (lambda: Language(kind="lora_narrow"), {}),
    "lora_narrow_bf16": (lambda: Language(kind="lora_narrow"), {"mixed_precision": "bf16"}),
    "lora_saved": (lambda: Language(kind="lora_saved"), {}),
    "bert_masked": (lambda: Language(kind="bert_masked"), {"find_unused_parameters": True}),
}


def configured(world: int, **settings: Any) -> TrainConfig:
    micro = settings.pop("micro_batch_size", GLOBAL_BATCH // world)
    return TrainConfig(
        **{
            "task": "brought_worker:Plain",
            "micro_batch_size": micro,
            "global_batch_size": GLOBAL_BATCH,
            "max_steps": STEPS,
            "lr": 0.01,
            "eps": 1e-4,  # far above rounding, of which Adam would take the sign
            "log_every": 1,
            **settings,
        }
    )


def train(launched: Launched, folder: Path, name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    build, settings = CASES[name]
    config = configured(launched.plan.world_size, output_dir=str(folder / name), **settings)
    try:
        run = Trainer(build(), config, launch(config, **told["file"]))
        rows = []
        for info in run.steps():
            assert info.metrics is not None
            more = {key: info.metrics[key] for key in ("error", "at", "high") if key in info.metrics}
            rows.append({"loss": info.metrics["loss"], "grad_norm": info.metrics["grad_norm"], **more})
        run.export(folder / name / "model")
        found = {
            "rows": rows,
            "evaluation": run.last_evaluation,
            "notices": run.facts["notices"],
            "model_class": type(run.model).__name__,
            "world_size": run.accelerator.num_processes,
            "trainable": run.trainable,
            "dtypes": sorted({str(p.dtype) for p in run.model.parameters() if p.requires_grad}),
            "training": [name for name, module in run.model.named_modules() if not module.training],
        }
        run.close()
        return found
    except trainer.TrainerError as error:
        if name in told.get("ends", ()):
            raise  # the other ranks wait inside of a collective
        return {"error": f"{type(error).__name__}: {error}"}


def train_two(folder: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Two trainings side by side on one launch, in a loop of one's own: the losses of each."""
    world = told["world"]
    configs = [configured(world, output_dir=str(folder / "two" / name)) for name in ("plain", "scalar")]
    launched = launch(configs[0], **told["file"])
    states = [TrainState(task, config, launched) for task, config in zip((Plain(), Scalar()), configs, strict=True)]
    losses: dict[str, list[float]] = {"plain": [], "scalar": []}
    for windows in zip(*(state.windows() for state in states), strict=True):
        for state, window, found in zip(states, windows, losses.values(), strict=True):
            step = 0.0
            for number, micro in enumerate(window.micros, 1):
                with state.strategy.micro_step(boundary=number == len(window.micros)):
                    share = state.task.training_step(state.model, micro.batch) * (micro.weight / window.samples)
                    state.strategy.backward(share * world)
                step += share.detach()
            state.strategy.finish_step()
            state.advance(window)
            found.append(float(state.accelerator.reduce(step, "sum")))
    for state in states:
        state.save()
        state.export(state.directory.path / "model")
        state.close()
    return losses


def main() -> None:
    told = json.loads(sys.argv[-1])  # the deepspeed launcher puts its own words first
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    world = told["world"]
    PRETRAINED.append(told["pretrained"])
    launched = launch(configured(world), **told["file"])
    for name in told["names"]:
        found = train_two(folder, told) if name == "two" else train(launched, folder, name, told)
        if launched.accelerator.is_main_process:
            (folder / f"{name}.json").write_text(json.dumps(found))
            print(name, found.get("error", "fine"), flush=True)


if __name__ == "__main__":
    trainer.run_and_exit(main)
