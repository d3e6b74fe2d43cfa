"""What a step costs beside a loop written by hand, a bare Accelerate loop and transformers.Trainer.

    python benchmarks/step_cost.py
    torchrun --nproc_per_node 2 benchmarks/step_cost.py

All of them train the same model on the same data with the same fused AdamW and clip by global norm; one after another
in each round, so that what else the machine does meets all alike. Prints seconds a step of the loop by hand, and each
of the others as a ratio to it: the middle of the rounds, and the quarter below and above.

measured (2026-11-21, two x86 CPU cores, OMP_NUM_THREADS=1, torch 2.13, accelerate 1.15, transformers 5.23):

                          one process                       two processes, DDP over gloo
                          Tiny (0.64 ms)    CNN (5.83 ms)   Tiny (2.05 ms)    CNN (8.71 ms)
    bare Accelerate       1.51 (1.49-1.55)  1.08 (1.04-1.11)  1.19 (1.06-1.38)  1.00 (0.95-1.05)
    samecurve             1.37 (1.36-1.46)  1.05 (1.02-1.07)  1.53 (1.35-1.69)  1.08 (1.05-1.14)
    transformers.Trainer  1.77 (1.76-1.79)  1.11 (1.08-1.13)  1.39 (1.15-1.53)  1.09 (1.02-1.17)
On two processes the ranks ask each other at every step whether one wants to stop: beside the step, but these two cores
have no third one to do it on (0.6 ms; without it samecurve is at 1.16 of Tiny).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, default_collate

import trainer
from trainer import Data, Task, TrainConfig, Trainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from digits_cnn import DigitsCNN

WARM, CLIP, LR, SAMPLES = 10, 1.0, 1e-3, 1438  # samples: of the digits, so that no epoch is cut short in one loop only


@dataclass(frozen=True, kw_only=True)
class Tiny(Task):
    """So little arithmetic that a step is nearly all overhead."""

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(0)
        images, labels = torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 10, (SAMPLES,))
        return Data(train=[{"image": image, "label": label} for image, label in zip(images, labels, strict=True)])

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"])


class Clock:
    """Seconds a step, from the end of step ``WARM`` on."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0

    def tick(self) -> bool:
        """A step is done; whether it was the last one."""
        self.done += 1
        if self.done == WARM:
            self.begin = time.perf_counter()
        if self.done == self.steps:
            self.each = (time.perf_counter() - self.begin) / (self.steps - WARM)
        return self.done == self.steps


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def by_hand(task: Task, batch_size: int, clock: Clock) -> None:
    torch.manual_seed(0)
    data, model = task.build_data().train, task.build_model()
    world = dist.get_world_size() if dist.is_initialized() else 1
    sampler = DistributedSampler(data) if world > 1 else None
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
    if world > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    for batch in endless(loader):
        task.training_step(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick():
            return


def bare_accelerate(task: Task, batch_size: int, clock: Clock) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == (dist.get_world_size() if dist.is_initialized() else 1)
    data, model = task.build_data().train, task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in endless(loader):
        with accelerator.accumulate(model):
            accelerator.backward(task.training_step(model, batch))
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
        if clock.tick():
            return


def ours(task: Task, batch_size: int, clock: Clock) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task="benchmark:none",
            output_dir=str(Path(folder) / "run"),
            max_steps=clock.steps + 1,  # the last step logs and evaluates
            micro_batch_size=batch_size,
            optimizer="adamw",
            lr=LR,
            max_grad_norm=CLIP,
            log_every=clock.steps + 1,
            drop_last=True,
            keep_last=0,
        )
        for _ in Trainer(task, config, trainer.launch(config)).steps():
            if clock.tick():
                return


def transformers_trainer(task: Task, batch_size: int, clock: Clock) -> None:
    from transformers import Trainer as Other
    from transformers import TrainerCallback, TrainingArguments

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.manual_seed(0)

    class Tick(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    class WithLoss(Other):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            return task.training_step(model, inputs)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=clock.steps,
            per_device_train_batch_size=batch_size,
            learning_rate=LR,
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            dataloader_drop_last=True,
            remove_unused_columns=False,
            use_cpu=True,
            ddp_find_unused_parameters=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        WithLoss(
            task.build_model(),
            arguments,
            train_dataset=task.build_data().train,
            data_collator=default_collate,
            callbacks=[Tick()],
        ).train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=210)
    args = parser.parse_args()
    contestants: dict[str, Callable[[Task, int, Clock], None]] = {
        "by hand": by_hand,
        "bare Accelerate": bare_accelerate,
        "samecurve": ours,
        "transformers.Trainer": transformers_trainer,
    }
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    main_process = not dist.is_initialized() or dist.get_rank() == 0
    for task, batch_size in ((Tiny(), 8), (DigitsCNN(), 32)):
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(args.rounds):
            for name, contestant in contestants.items():
                clock = Clock(args.steps)
                with contextlib.redirect_stdout(io.StringIO()):
                    contestant(task, batch_size, clock)
                seconds[name].append(clock.each)
        if main_process:
            first = seconds["by hand"]
            print(f"{type(task).__name__}, batch {batch_size}: by hand {1e3 * statistics.median(first):.2f} ms a step")
            for name, values in seconds.items():
                ratios = [value / base for value, base in zip(values, first, strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(f"    {name:22} {middle:5.2f} x  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    trainer.run_and_exit(main)
