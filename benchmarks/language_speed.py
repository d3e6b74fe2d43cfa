"""Tokens a second of a full fine-tune beside transformers.Trainer: same model, data, order, batch and optimizer.

    OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 benchmarks/language_speed.py

A Llama of 8.4 million parameters on rows of 256 tokens, four a process, under DDP. First both train for some steps
from the same weights, and every weight is compared: where they differ no time is taken. Then one after another in each
round, so that what else the machine does meets all alike; samecurve twice, which shows what a ratio of 1 looks like.
Prints tokens a second as a ratio to samecurve's in the same round: the middle of the rounds, and the quarter below and
above.

measured (2026-11-22, two x86 CPU cores with nothing else to do, torch 2.13, transformers 5.23): as fast as each other,
as far as this machine can tell, where samecurve's rounds differ from each other by more than it from the Trainer.

    samecurve              1.000 x, 2,398 tokens/s
    samecurve again        1.023 x  (0.840 to 1.121)
    transformers.Trainer   1.003 x  (0.933 to 1.144)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState

import trainer
from trainer import TrainConfig, Trainer
from trainer.build import build_whole
from trainer.data.order import epoch_order
from trainer.language import CausalLM

WARM, CLIP, LR, BATCH, LENGTH, WORDS = 3, 1.0, 1e-3, 4, 256, 4096
SIZES = {"hidden_size": 320, "intermediate_size": 800, "num_hidden_layers": 6, "num_attention_heads": 5}
CLOSE = 1e-6  # of a weight after six steps: 1.2e-7 where all is the same, 4.3e-6 where the last batch was another one
Weights = dict[str, torch.Tensor]


def make_task(folder: Path, documents: int) -> CausalLM:
    """Write a tokenizer and documents that fill a row each; return the task that learns them from scratch."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({str(word): word for word in range(WORDS)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1").save_pretrained(folder)
    draw = random.Random(0)
    with open(folder / "rows.jsonl", "w") as file:
        for _ in range(documents):
            text = " ".join(str(int(2 + (WORDS - 3) * draw.random() ** 3)) for _ in range(LENGTH))
            file.write(json.dumps({"text": text}) + "\n")
    return CausalLM(
        loss="plain",
        config={"model_type": "llama", "tie_word_embeddings": True, "max_position_embeddings": LENGTH, **SIZES},
        tokenizer=str(folder),
        data=str(folder / "rows.jsonl"),
        sequence_length=LENGTH,
        packing="none",
        cache_dir=str(folder / "cache"),
    )


class Clock:
    """Seconds a step, from the end of step ``WARM`` on."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0

    def tick(self) -> None:
        self.done += 1
        if self.done == WARM:
            self.begin = time.perf_counter()
        if self.done == self.steps:
            self.each = (time.perf_counter() - self.begin) / (self.steps - WARM)


def weights_of(model: Any) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def ours(task: CausalLM, clock: Clock) -> Weights:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task="benchmark:none",
            output_dir=str(Path(folder) / "run"),
            max_steps=clock.steps,
            micro_batch_size=BATCH,
            optimizer="adamw",
            lr=LR,
            max_grad_norm=CLIP,
            log_every=clock.steps,
            keep_last=0,
        )
        running = Trainer(task, config, trainer.launch(config))
        for _ in running.steps():
            clock.tick()
        found = weights_of(running.accelerator.unwrap_model(running.model))
        running.close()
    return found


def transformers_trainer(task: CausalLM, clock: Clock) -> Weights:
    from torch.utils.data import SequentialSampler
    from transformers import Trainer as Other
    from transformers import TrainerCallback, TrainingArguments

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    data = task.build_data()

    class Tick(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    class InOrder(Other):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(args[0] if args else self.train_dataset)

    def collate(rows: Any) -> dict[str, torch.Tensor]:
        batch = data.collate(rows)  # labels are shifted already, which transformers calls shift_labels
        return {"input_ids": batch["input_ids"], "labels": batch["labels"], "shift_labels": batch["labels"]}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=clock.steps,
            per_device_train_batch_size=BATCH,
            learning_rate=LR,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=CLIP,
            optim="adamw_torch_fused",
            remove_unused_columns=False,
            use_cpu=True,
            ddp_find_unused_parameters=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model = build_whole(task)
        rows = [data.train[at] for at in epoch_order(len(data.train), 0, 0)]
        InOrder(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[Tick()]).train()
    return weights_of(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=23)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    world, is_main = dist.get_world_size(), dist.get_rank() == 0

    def train(how: Callable[[CausalLM, Clock], Weights], steps: int) -> tuple[float, Weights]:
        clock = Clock(steps)
        with contextlib.redirect_stdout(io.StringIO()):
            weights = how(task, clock)
        return clock.each, weights

    def say(text: str) -> None:
        if is_main:
            print(text, flush=True)

    with tempfile.TemporaryDirectory() as folder:  # of each process; the same stands in all
        task = make_task(Path(folder), documents=BATCH * world * max(args.steps, 6))  # no second epoch
        start, (_, mine), (_, theirs) = weights_of(build_whole(task)), train(ours, 6), train(transformers_trainer, 6)
        assert mine.keys() == theirs.keys() == start.keys()
        apart = max(float((mine[name] - theirs[name]).abs().max()) for name in mine)
        moved = max(float((mine[name] - start[name]).abs().max()) for name in mine)
        say(f"after 6 steps weights have moved by up to {moved:.1e}, and the two are {apart:.1e} apart")
        if apart > CLOSE:
            raise SystemExit("they do not train the same: no time is taken")
        seconds: dict[str, list[float]] = {"samecurve": [], "samecurve again": [], "transformers.Trainer": []}
        for number in range(args.rounds):
            for name in list(seconds)[:: 1 if number % 2 else -1]:  # forwards and backwards in turn
                seconds[name].append(train(transformers_trainer if "Trainer" in name else ours, args.steps)[0])
        first = seconds["samecurve"]
        say(f"samecurve: {BATCH * world * LENGTH / statistics.median(first):,.0f} tokens/s")
        for name, values in seconds.items():
            low, middle, high = statistics.quantiles([base / each for base, each in zip(first, values, strict=True)])
            say(f"    {name:22} {middle:5.3f} x  ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    trainer.run_and_exit(main)
