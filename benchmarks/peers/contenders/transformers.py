"""transformers.Trainer, with the optimizer and the schedule of the work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, build_data, loss_of
from .by_hand import weights_of


class Tick(TrainerCallback):
    """Tells the turns of each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.turns.step_done()


class InOrder(Trainer):
    """A Trainer that takes the samples in the order of the work."""

    work: Work

    def _get_train_sampler(self, *args: Any) -> Any:
        return self.work.samples(whole=True)

    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = self.work.optimizer(self.model if model is None else model)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = self.work.schedule(self.optimizer if optimizer is None else optimizer)
        return self.lr_scheduler


class WithLoss(InOrder):
    """The same for models that return scores alone."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any
    ) -> Any:
        return loss_of(model, inputs)


def connect(work: Work) -> None:
    """Connect the processes over gloo; that they are distributed Accelerate does not find out
    without a GPU.
    """
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    if "zero" in work.strategy:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    state = PartialState(backend="gloo") if work.world > 1 else PartialState(cpu=True)
    becomes = {"ddp": DistributedType.MULTI_CPU, "fsdp": DistributedType.MULTI_GPU}
    if work.strategy in becomes:
        state._shared_state["distributed_type"] = becomes[work.strategy]


def run(
    work: Work, turns: Turns, cls: type[InOrder], model: Any, data: Any, collate: Any
) -> dict[str, Tensor]:
    connect(work)
    strategy: dict[str, Any] = {}
    if work.strategy == "fsdp":
        strategy = {"fsdp": True, "fsdp_config": {"version": 2}}
    elif "zero" in work.strategy:
        zero = {
            "stage": int(work.strategy[-1]),
            "reduce_bucket_size": sum(p.numel() for p in model.parameters()),
        }
        asked = (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
        auto = dict.fromkeys((*asked, "gradient_clipping"), "auto")
        strategy = {
            "deepspeed": {"zero_optimization": zero, "zero_allow_untested_optimizer": True, **auto}
        }
    arguments = TrainingArguments(
        output_dir=str(Path(work.folder) / f"run of {turns.name}"),
        max_steps=work.steps,
        per_device_train_batch_size=work.batch,
        max_grad_norm=CLIP,
        remove_unused_columns=False,
        use_cpu=work.strategy in ("single", "ddp"),
        accelerator_config={"use_configured_state": True},
        ddp_find_unused_parameters=False,
        logging_steps=READ_EVERY,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **strategy,
    )
    running = cls(
        model, arguments, train_dataset=data, data_collator=collate, callbacks=[Tick(turns)]
    )
    running.work = work
    running.train()
    verify(work, running)
    if work.strategy == "zero3":
        return {
            name: safe_get_full_fp32_param(parameter)
            for name, parameter in model.named_parameters()
        }
    return weights_of(model)


def verify(work: Work, running: Trainer) -> None:
    """Hold the strategy that ran against the one that was wanted."""
    names = {"single": "NO", "ddp": "MULTI_CPU", "fsdp": "FSDP"}
    found = str(running.accelerator.distributed_type).removeprefix("DistributedType.")
    assert found == names.get(work.strategy, "DEEPSPEED"), found
    if "zero" in work.strategy:
        assert running.model_wrapped.zero_optimization_stage() == int(work.strategy[-1])


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    return run(work, turns, WithLoss, work.build_model(), build_data(work.model), default_collate)


def train_llama(work: Work, turns: Turns) -> dict[str, Tensor]:
    from ..llama import fine_tuned

    data = fine_tuned(Path(work.folder)).build_data()

    def collate(rows: Any) -> dict[str, Tensor]:
        batch = data.collate(
            rows
        )  # labels are shifted already, which transformers calls shift_labels
        return {
            "input_ids": batch["input_ids"],
            "labels": batch["labels"],
            "shift_labels": batch["labels"],
        }

    model = AutoModelForCausalLM.from_pretrained(Path(work.folder) / "pretrained")
    return run(work, turns, InOrder, model, data.train, collate)
