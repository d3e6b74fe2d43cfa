"""Two steps of DPO and of a reward model, or their speed, beside TRL on the same pairs.

    python benchmarks/preferences.py FOLDER                    # losses, norms, metrics of two steps
    python benchmarks/preferences.py FOLDER --steps 6 --adapter --pairs 3     # speed and memory

FOLDER holds a model (safetensors and a tokenizer), such as SmolLM2-135M of docs/fine_tuning.md. TRL
comes from an environment of its own, or by ``pip install --no-deps --target DIR trl==1.16.0`` and
``PYTHONPATH=DIR``, on top of this repository's environment. Each way is a process of its own, in
float32 on the CPU, with the same eight pairs of conversations in each step. The template writes
nothing behind a turn, because TRL trains on all that a template writes behind the prompt.

A random Llama of two layers, 2026-11-27, two x86 cores, torch 2.13, transformers 5.23, TRL 1.16: in
all five cases and both steps, losses, norms, rewards and margins differ by 3e-6 at most.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}|{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant|{% endif %}"
)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings here, and of TRL
    "sigmoid": ({}, {}),
    "computed once": ({"reference": "computed_once"}, {"precompute_ref_log_probs": True}),
    "robust": (
        {"objective": "robust", "label_smoothing": 0.1},
        {"loss_type": ["robust"], "label_smoothing": 0.1},
    ),
    "ipo": ({"objective": "ipo"}, {"loss_type": ["ipo"]}),
    "reward": ({}, {}),
}
NAMES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "margin": "rewards/margins",
}
LR, EPS = 1e-3, 1e-4
PAIRS = 8


def pairs(length: int) -> list[dict[str, Any]]:
    """Return pairs of uneven lengths, of prose that comes with Python."""
    texts = [text for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 4000]
    rows = []
    for at in range(PAIRS):
        cut = length - length * (at % 4) // 8
        rows.append(
            {
                "prompt": [{"role": "user", "content": texts[at][:60]}],
                "chosen": [{"role": "assistant", "content": texts[at][100 : 100 + cut]}],
                "rejected": [{"role": "assistant", "content": texts[at + 9][:cut]}],
                "margin": at % 3 / 10,
            }
        )
    return rows


class Clock:
    """Seconds and peak memory of the steps but the first, which allocates."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def tick(self) -> None:
        self.times.append(time.perf_counter())

    def facts(self) -> dict[str, float]:
        spans = sorted(
            after - before for before, after in zip(self.times[1:], self.times[2:], strict=False)
        )
        median = spans[len(spans) // 2] if spans else 0.0
        return {"s": median, "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)}


def here(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch

    import trainer
    from trainer.language import DPO, RewardModel

    ours, _ = CASES[args.case]
    kind = RewardModel if args.case == "reward" else DPO
    task = kind(
        model=args.folder,
        data=str(folder / "pairs.jsonl"),
        template=TEMPLATE,
        sequence_length=2048,
        cache_dir=str(folder / "cache"),
        adapter={"r": 16, "alpha": 32} if args.adapter else None,
        **ours,
    )
    config = trainer.TrainConfig(
        task=f"trainer.language:{kind.__name__}",
        output_dir=str(folder / "run"),
        overwrite=True,
        max_steps=args.steps,
        micro_batch_size=args.micro,
        accumulation_steps=PAIRS // args.micro,
        lr=LR,
        eps=EPS,
        weight_decay=0.0,
        max_grad_norm=1.0,
        log_every=1,
        keep_last=0,
    )
    training, clock = trainer.Trainer(task, config), Clock()
    if args.case == "reward":  # the new layer has other first values than TRL's
        torch.save(training.run.model.score.weight.detach().clone(), folder / "score.pt")
    clock.tick()
    found = []
    for info in training.steps():
        clock.tick()
        values = {**(info.metrics or {}), "loss": info.loss, "grad_norm": info.grad_norm}
        found.append({name: float(values[name]) for name in NAMES})
    return {"steps": found, **clock.facts()}


def trl(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        TrainerCallback,
    )
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

    clock = Clock()

    class Ticks(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.tick()

    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    _, theirs = CASES[args.case]
    settings = {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": args.micro,
        "gradient_accumulation_steps": PAIRS // args.micro,
        "max_steps": args.steps,
        "learning_rate": LR,
        "adam_epsilon": EPS,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_length": 2048,
        **theirs,
    }
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    if args.case != "reward":
        rows = [{name: row[name] for name in row if name != "margin"} for row in rows]
    told: dict[str, Any] = {
        "train_dataset": Dataset.from_list(rows),
        "processing_class": tokenizer,
        "callbacks": [Ticks()],
    }
    if args.adapter:
        told["peft_config"] = LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    if args.case == "reward":
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            args.folder, num_labels=1, dtype="float32"
        )
        model.score.weight.data.copy_(torch.load(folder / "score.pt"))
        training: Any = RewardTrainer(model=model, args=RewardConfig(**settings), **told)
    else:
        model = AutoModelForCausalLM.from_pretrained(args.folder, dtype="float32")
        training = DPOTrainer(model=model, args=DPOConfig(**settings), **told)
    training.train()
    rows = [row for row in training.state.log_history if "loss" in row]
    found = [
        {
            name: row.get(key, row.get(name))
            for name, key in NAMES.items()
            if key in row or name in row
        }
        for row in rows
    ]
    return {"steps": found, **clock.facts()}


def count_tokens(folder: str, rows: list[dict[str, Any]]) -> int:
    """Count the tokens of both sides of all pairs."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    sides = [row["prompt"] + row[side] for row in rows for side in ("chosen", "rejected")]
    how = {"chat_template": TEMPLATE, "return_dict": False}
    return sum(len(tokenizer.apply_chat_template(side, **how)) for side in sides)


def started(way: str, args: argparse.Namespace, case: str, folder: Path) -> dict[str, Any]:
    """Run a way in a process of its own."""
    words = [sys.executable, __file__, args.folder, "--steps", str(args.steps), "--way", way]
    words += ["--case", case, "--micro", str(args.micro), "--work", str(folder)]
    words += ["--adapter"] * args.adapter
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--micro", type=int, default=8, help="pairs of a micro-batch")
    parser.add_argument("--length", type=int, default=300, help="characters of an answer")
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--pairs", type=int, default=0, help="measure the speed so often, in turns")
    parser.add_argument("--way", choices=("here", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--case", default="sigmoid", choices=CASES)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        found = (here if args.way == "here" else trl)(args, args.work)
        print("FOUND " + json.dumps(found), flush=True)
        return

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = pairs(args.length)
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        tokens = count_tokens(args.folder, rows) if args.pairs else 0
        for turn in range(args.pairs):
            for way in ("here", "trl")[:: 1 - 2 * (turn % 2)]:
                found = started(way, args, args.case, folder)
                losses = " ".join(f"{row['loss']:.6f}" for row in found["steps"])
                margins = " ".join(f"{row['margin']:.5f}" for row in found["steps"])
                speed = f"{found['s']:.2f} s a step, {tokens / found['s']:.0f} tokens/s"
                print(f"{way}: {speed}, {found['GiB']:.2f} GiB, losses {losses}")
                print(f"      margins {margins}", flush=True)
        for case in () if args.pairs else CASES:
            ours, theirs = (started(way, args, case, folder)["steps"] for way in ("here", "trl"))
            for number, (row, other) in enumerate(zip(ours, theirs, strict=True), 1):
                worst = max(abs(row[name] - other[name]) for name in other)
                print(f"{case}, step {number}: loss {row['loss']:.7f} and {other['loss']:.7f},")
                print(f"    norm {row['grad_norm']:.6f} and {other['grad_norm']:.6f},", end=" ")
                print(f"largest difference of all values {worst:.1e}", flush=True)


if __name__ == "__main__":
    main()
