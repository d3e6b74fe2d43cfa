"""A training step of a language model with each way to compute the loss, in turns: auto, plain, in chunks, and TRL's.

    python benchmarks/language_loss.py FOLDER [--rows 2] [--length 256] [--steps 8] [--with auto plain fused trl]

FOLDER holds a model as safetensors (docs/fine_tuning.md says where SmolLM2-135M comes from). All weights are trained on
packed rows of Python's own documentation, without a launcher
and with one thread. Each way has a process of its own, and waits for the others: first one step of each, then the next,
so that what else the machine does meets all of them. The first step of each is left out.

Prints each way's tokens per second of wall time and of CPU time, and the ratios of its steps to those of ``plain``
beside them: median, lowest, highest. TRL (``pip install --no-deps trl``) is compared where it is asked for.

measured (SmolLM2-135M, 2 x 256, two quiet x86 CPU cores, torch 2.13), tokens a second of wall time, and the ratio to
plain (median, least and most):
2026-11-24, at 41e045c, ``--with auto plain fused --steps 8``: auto 151.2, 1.04 (1.00 to 1.24); plain 145.0; fused
151.2, 1.03 (0.71 to 1.45);
2026-11-23, at 490efb0, ``--with auto plain fused trl --steps 10``, TRL 1.16: auto 137.9, 0.99 (0.96 to 1.04); plain
138.2; fused 137.8, 1.00 (0.93 to 1.15); TRL 102.3, 0.75 (0.63 to 0.94).
auto computes as plain does at this size.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = {"lr": 1e-4, "max_grad_norm": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--with", dest="ways", nargs="+", default=["auto", "plain", "fused"])
    parser.add_argument("--way", help="of this process, which the one that was started starts")
    args = parser.parse_args()
    if args.way is None:
        return coordinate(args)

    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.jsonl"
        found = sorted(pydoc_data.topics.topics.values())
        texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
        train = with_trl if args.way == "trl" else with_samecurve
        train(args, folder, texts)


def coordinate(args: argparse.Namespace) -> None:
    """Let each way make a step in turn, and print what they took."""
    words = [sys.executable, __file__, *sys.argv[1:]]
    children = {
        way: subprocess.Popen(
            [*words, "--way", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for way in args.ways
    }
    found: dict[str, list[dict[str, float]]] = {way: [] for way in args.ways}
    try:
        for number in range(args.steps + 1):
            order = args.ways if number % 2 else args.ways[::-1]
            for way in order:
                step = ask(children[way])
                print(number, way, json.dumps(step), file=sys.stderr, flush=True)
                if number > 0:  # the first one warms up
                    found[way].append(step)
    finally:
        for child in children.values():
            child.kill()
            child.wait()

    tokens = args.rows * args.length
    for way, steps in found.items():
        line = f"{way:6} peak {steps[-1]['rss']:5.2f} GiB"
        for clock in ("wall", "cpu"):
            speed = tokens / statistics.median(step[clock] for step in steps)
            ratios = [
                plain[clock] / own[clock] for own, plain in zip(steps, found["plain"], strict=True)
            ]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            line += f"   {clock} {speed:6.1f} tokens/s, {statistics.median(ratios):.2f} x plain ({spread})"
        print(line, flush=True)


def ask(child: Any) -> dict[str, float]:
    """Let a process make one step; return its seconds and its memory until now."""
    child.stdin.write("step\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("STEP "):
            return json.loads(line.removeprefix("STEP "))  # type: ignore[no-any-return]
    raise SystemExit(f"{child.args}: ended")


class Clock:
    """What a process says of a step."""

    def begin(self) -> None:
        sys.stdin.readline()
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        took = {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print("STEP", json.dumps({**took, "rss": memory}), flush=True)


def with_samecurve(args: argparse.Namespace, folder: str, texts: Path) -> None:
    import trainer
    from trainer.language import CausalLM

    task = CausalLM(
        model=args.folder,
        data=str(texts),
        sequence_length=args.length,
        loss=args.way,
        cache_dir=f"{folder}/cache",
    )
    config = trainer.TrainConfig(
        task="trainer.language:CausalLM",
        output_dir=f"{folder}/run",
        max_steps=args.steps + 1,
        micro_batch_size=args.rows,
        keep_last=0,
        **SETTINGS,
    )
    clock = Clock()
    steps = iter(trainer.Trainer(task, config).steps())
    for _ in range(args.steps + 1):
        clock.begin()
        next(steps)
        clock.end()


def with_trl(args: argparse.Namespace, folder: str, texts: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    clock = Clock()

    class Turns(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.begin()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.end()

    config = SFTConfig(
        output_dir=f"{folder}/run",
        per_device_train_batch_size=args.rows,
        max_steps=args.steps + 1,
        learning_rate=SETTINGS["lr"],
        max_grad_norm=SETTINGS["max_grad_norm"],
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        packing=True,
        max_length=args.length,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        optim="adamw_torch",
        disable_tqdm=True,
    )
    SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.folder, dtype="float32"),
        args=config,
        train_dataset=Dataset.from_list(
            [json.loads(line) for line in texts.read_text().splitlines()]
        ),
        processing_class=AutoTokenizer.from_pretrained(args.folder),
        callbacks=[Turns()],
    ).train()


if __name__ == "__main__":
    main()
