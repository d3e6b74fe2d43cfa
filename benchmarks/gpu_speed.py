"""Tokens a second and memory of a Llama on GPUs, beside a loop written by hand and
transformers.Trainer.

    python benchmarks/gpu_speed.py 124M                                    # one GPU
    torchrun --nproc_per_node 2 benchmarks/gpu_speed.py 1B --json out.json
    python benchmarks/gpu_speed.py tiny                                    # its own code, on a CPU

bf16 by autocast over float32 weights, compiled, fused AdamW, clipping; the same batches from
memory. Each loop trains some steps, which compile and warm up, then times the rest, from one
synchronised moment to another. Beside the speed: the allocator's peak, and what ``trainer plan``
says that it needs. Not measured on a GPU yet; `make gpu` does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.commands import cli

WARM, TIMED, LR, CLIP = 4, 16, 1e-4, 1.0
# Name: examples and tokens of a micro-batch, GiB of GPU memory that it wants, the model's shape.
MODELS: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "tiny": (2, 32, 0, {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                        "num_attention_heads": 4, "num_key_value_heads": 4}),
    "124M": (16, 1024, 20, {"vocab_size": 50304, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
                            "num_attention_heads": 12, "num_key_value_heads": 12}),
    "1B": (4, 2048, 60, {"vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                         "num_attention_heads": 32, "num_key_value_heads": 8}),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Llama(Task):
    """A Llama with tied embeddings, on random tokens."""

    name: str = "tiny"

    def config(self) -> Any:
        from transformers import LlamaConfig

        length, shape = MODELS[self.name][1], MODELS[self.name][3]
        return LlamaConfig(
            **shape, max_position_embeddings=length, tie_word_embeddings=True, use_cache=False
        )

    def build_data(self) -> Data:
        examples, length, _, shape = MODELS[self.name]
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, shape["vocab_size"], (16 * examples, length), generator=generator)
        return Data(train=[{"input_ids": row, "labels": row} for row in ids])

    def build_model(self) -> nn.Module:
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM(self.config())

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(**batch).loss


class Clock:
    """Seconds of the timed steps, and the allocator's peak over all of them."""

    def __init__(self) -> None:
        self.steps, self.begin, self.each = 0, 0.0, 0.0
        synchronize()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def tick(self) -> bool:
        """Count a step; tell whether it was the last one."""
        self.steps += 1
        if self.steps == WARM:
            synchronize()
            self.begin = time.perf_counter()
        if self.steps == WARM + TIMED:
            synchronize()
            self.each = (time.perf_counter() - self.begin) / TIMED
        return self.steps >= WARM + TIMED

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device() -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def by_hand(task: Llama, compiled: bool, clock: Clock) -> None:
    examples = MODELS[task.name][0]
    torch.manual_seed(0)
    rows = task.build_data().train
    batches = [
        torch.stack([row["input_ids"] for row in rows[at : at + examples]])
        for at in range(0, len(rows), examples)
    ]
    model: Any = task.build_model().to(device())
    if compiled:
        model.forward = torch.compile(model.forward)
    if dist.is_initialized() and dist.get_world_size() > 1:
        model = DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    while True:
        for batch in batches:
            ids = (batch.pin_memory() if torch.cuda.is_available() else batch).to(
                device(), non_blocking=True
            )
            with torch.autocast(device().type, dtype=torch.bfloat16):
                loss = task.training_step(model, {"input_ids": ids, "labels": ids})
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            if clock.tick():
                return


def ours(task: Llama, compiled: bool, clock: Clock) -> None:
    config = TrainConfig(
        task="benchmarks:none", output_dir=str(Path(tempfile.mkdtemp()) / "run"), max_steps=WARM + TIMED + 1, lr=LR,
        micro_batch_size=MODELS[task.name][0], optimizer="adamw", mixed_precision="bf16", max_grad_norm=CLIP,
        compile=compiled, log_every=1000, keep_last=0,
    )  # fmt: skip
    run = Trainer(task, config, trainer.launch(config))
    for _ in run.steps():
        if clock.tick():
            break
    run.run.close()


def transformers_trainer(task: Llama, compiled: bool, clock: Clock) -> None:
    from transformers import Trainer as Other
    from transformers import TrainerCallback, TrainingArguments

    class Tick(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=WARM + TIMED, per_device_train_batch_size=MODELS[task.name][0],
        learning_rate=LR, max_grad_norm=CLIP, optim="adamw_torch_fused", bf16=True, torch_compile=compiled,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    Other(
        task.build_model(), arguments, train_dataset=task.build_data().train, callbacks=[Tick()]
    ).train()


CONTESTANTS: dict[str, Callable[[Llama, bool, Clock], None]] = {
    "by hand": by_hand,
    "samecurve": ours,
    "transformers.Trainer": transformers_trainer,
}


def planned_bytes(task: Llama, world: int) -> int:
    """Return what `trainer plan` says that a GPU needs for this training with replicas of the
    model.
    """
    examples, length = MODELS[task.name][:2]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        task.config().save_pretrained(folder)
        words = [
            "--micro_batch",
            str(examples),
            "--sequence",
            str(length),
            "--precision",
            "bf16",
            "--json",
        ]
        assert cli.main(["plan", folder, "--gpus", str(world), *words]) == 0
    rows = json.loads(said.getvalue())["rows"]
    [row] = [row for row in rows if row["strategy"] in ("single", "ddp") and not row["recompute"]]
    return int(row["device"])


def measure(name: str, *, compiled: bool) -> dict[str, Any]:
    task, world = Llama(name=name), dist.get_world_size() if dist.is_initialized() else 1
    tokens = MODELS[name][0] * MODELS[name][1] * world
    parameters = sum(p.numel() for p in task.build_model().parameters())
    found: dict[str, Any] = {
        "parameters": parameters,
        "tokens_per_step": tokens,
        "compiled": compiled,
        "world": world,
    }
    for contestant, loop in CONTESTANTS.items():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        clock, begun = Clock(), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            loop(task, compiled, clock)
        rate = tokens / clock.each
        found[contestant] = {"seconds_per_step": clock.each, "tokens_per_second": rate, "peak_bytes": clock.peak,
                             "seconds_in_all": round(time.perf_counter() - begun, 1)}  # fmt: skip
    found["planned_bytes"] = planned_bytes(task, world)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", choices=list(MODELS))
    parser.add_argument("--json", help="write the figures to this file as well")
    parser.add_argument("--not_compiled", action="store_true")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    main_process = not dist.is_initialized() or dist.get_rank() == 0
    found: dict[str, Any] = {}
    for name in args.models:
        wanted = MODELS[name][2]
        if (
            torch.cuda.is_available()
            and torch.cuda.get_device_properties(0).total_memory < wanted * 2**30
        ):
            found[name] = {"error": f"wants a GPU of {wanted} GiB"}
            continue
        found[name] = measure(name, compiled=not args.not_compiled)
        for contestant in CONTESTANTS if main_process else ():
            measured = found[name][contestant]
            speed = f"{1e3 * measured['seconds_per_step']:9.2f} ms a step {measured['tokens_per_second']:12,.0f} tokens/s"
            print(
                f"{name:6} {contestant:22} {speed}  peak {measured['peak_bytes'] / 2**30:6.2f} GiB"
            )
    if args.json and main_process:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    trainer.run_and_exit(main)
