"""Trainings for `make gpu`, several in one process: a GPU's set-up costs seconds.

    ... tests/workers/gpu_cases.py '{"file": {"accel_config": ...}, "folder": ..., "cases": [["curve", "bf16"], ...]}'

Each case leaves ``<folder>/<case>.json``: what its function returns, or ``{"error": ...}``. Several cases of a function
have their first argument in the name. ``hand`` trains without the package under test, for comparison.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from of_all_ranks import leave
from torch import Tensor, nn

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.launching import launch
from trainer.script import load_config, load_task

STEPS, SAVED, BATCH, LR, CLIP, EPS = 8, 4, 16, 1e-3, 1.0, 1e-4
JOB: dict[str, Any] = {}
ROOT = Path(__file__).resolve().parents[2]


def innermost_place() -> str:
    """Return file and function of the innermost call that is neither torch's nor a worker's."""
    for frame in reversed(traceback.extract_stack()):
        name = frame.filename
        if "/torch/" in name or "tests/workers/" in name or name.startswith("<"):
            continue
        for root in ("site-packages/", f"{ROOT}/.site/", f"{ROOT}/"):
            name = name.rpartition(root)[2]
        return f"{name}: {frame.name}"
    return "nowhere"


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.device_count() else "cpu")


@dataclass(frozen=True, kw_only=True)
class Words(Task):
    """A small Llama on as many random texts as one step takes, so that each step sees the same
    ones.
    """

    folder: str = ""  # of pretrained weights

    def build_data(self) -> Data:
        ids = torch.randint(0, 256, (BATCH, 32), generator=torch.Generator().manual_seed(3))
        return Data(train=[{"ids": row} for row in ids])

    def build_model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM, LlamaConfig

        if self.folder:
            return AutoModelForCausalLM.from_pretrained(self.folder)
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        return AutoModelForCausalLM.from_config(
            LlamaConfig(vocab_size=256, num_key_value_heads=4, **sizes)
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(input_ids=batch["ids"], labels=batch["ids"]).loss


class InFourBits(Words):
    """The same with adapters, on weights that are quantized on the device."""

    def build_model(self) -> nn.Module:
        from trainer.language.adapters import Adapter, add_adapter
        from trainer.language.model_files import build_on_meta

        folder = f"{JOB['folder']}/unquantized"
        save(super().build_model(), folder)
        model, *_ = build_on_meta(folder, None, folder, quantize="nf4")
        return add_adapter(model, Adapter(r=4, quantize="nf4"), "CAUSAL_LM")


class Pictures(Task):
    """A CNN, for a rehearsal on the fake GPU."""

    def build_data(self) -> Data:
        pictures = torch.randn(BATCH, 8, 16, 16, generator=torch.Generator().manual_seed(4))
        return Data(train=[{"x": one, "y": number % 4} for number, one in enumerate(pictures)])

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 196, 4))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])


def train(name: str, task: Task, **settings: Any) -> Trainer:
    """Build a training of eight steps of the whole batch, in two micro-batches a step."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    given = {
        "task": "gpu_cases:Words", "output_dir": str(Path(JOB["folder"]) / name), "max_steps": STEPS, "log_every": 1,
        "micro_batch_size": BATCH // 2 // world, "global_batch_size": BATCH, "lr": LR, "eps": EPS, "weight_decay": 0.0,
        "max_grad_norm": CLIP, "keep_last": 0, **settings,
    }  # fmt: skip
    config = TrainConfig(**given)
    return Trainer(task, config, launch(config, **JOB["file"]))


def losses(run: Trainer) -> dict[str, Any]:
    """Train to the end: the loss of each step, and what ran."""
    keys = ("strategy", "world_size", "device", "mixed_precision", "rehearsal")
    try:
        found = {info.step: info.metrics["loss"] for info in run.steps() if info.metrics}
        plan = {key: getattr(run.run.plan, key) for key in keys}
        return {"losses": found, "skipped": run.run.skipped_steps, "plan": plan}
    finally:
        run.run.close()


def curve(name: str, task: Task | None = None, **settings: Any) -> dict[str, Any]:
    return losses(train(name, task or Words(), **{"mixed_precision": "bf16", **settings}))


def saved(folder: str) -> str:
    """Return the checkpoint of a run in the middle."""
    return f"{folder}/checkpoints/step-{SAVED:08}"


def waits() -> dict[str, Any]:
    """Train, and find the places at which a step that is not logged waits for the device.

    An event or a stream that the host waits for is not seen.
    """
    found: Counter[str] = Counter()

    def note(message: Any, *_: Any) -> None:
        if "synchronizing" in str(message):
            found[innermost_place()] += 1

    run = train("waits", Words(), mixed_precision="bf16", log_every=STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        for info in run.steps():
            if device().type == "cuda":
                is_seen = 2 <= info.step < STEPS - 1
                torch.cuda.set_sync_debug_mode("warn" if is_seen else "default")
    run.run.close()
    return {"steps": run.run.step, "waits": found}


def command(name: str, words: str) -> dict[str, Any]:
    """Train a command line: the losses, what ran, and the most bytes of tensors on the GPU."""
    loaded = load_config([*json.loads(words), f"--output_dir={JOB['folder']}/{name}"])
    task, config = load_task(loaded)
    on_gpu = device().type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    found = losses(Trainer(task, config, launch(config, **JOB["file"])))
    return {**found, "bytes": torch.cuda.max_memory_allocated() if on_gpu else None}


def repeats() -> dict[str, Any]:
    """Train twice with deterministic algorithms, and go on once from the middle."""
    first: dict[str, Any] = {"save_every": SAVED, "keep_last": 2}
    third = {"resume": saved(f"{JOB['folder']}/first")}
    found = []
    for name, settings in (("first", first), ("second", {}), ("third", third)):
        ours = curve(name, deterministic=True, **settings)["losses"]
        found.append({step: value.hex() for step, value in ours.items()})
    return {"losses": found}


def hand(precision: str, folder: str = "") -> dict[str, Any]:
    """Train in a plain loop on one device."""
    target, task = device(), Words(folder=folder)
    torch.manual_seed(0)
    model = task.build_model().to(target).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=EPS, weight_decay=0.0)
    scaler = torch.amp.GradScaler(target.type, enabled=precision == "fp16")
    batch = {"ids": torch.stack([row["ids"] for row in task.build_data().train]).to(target)}
    dtype = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    found = {}
    for step in range(1, STEPS + 1):
        with torch.autocast(target.type, dtype=dtype, enabled=precision != "no"):
            loss = task.training_step(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found[step] = float(loss.detach())
    return {"losses": found}


def write_pretrained(folder: str) -> dict[str, Any]:
    """Save a model of bfloat16, as most are published."""
    torch.manual_seed(1)
    save(Words().build_model().to(torch.bfloat16), folder)
    return {}


def save(model: Any, folder: str) -> None:
    """Save a model on the main process. Collective: call on every rank."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        model.save_pretrained(folder)
    if dist.is_initialized():
        dist.barrier()


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "curve": lambda precision: curve(
        f"curve-{precision}", mixed_precision=precision, save_every=SAVED, keep_last=2
    ),
    "resume": lambda folder: curve(
        "resume", mixed_precision="no", resume=saved(f"{folder}/curve-no")
    ),
    "waits": waits,
    "command": command,
    "repeats": repeats,
    "hand": hand,
    "write_pretrained": write_pretrained,
    "plain": lambda: curve("plain"),
    "pretrained": lambda folder: curve("pretrained", Words(folder=folder)),
    "four_bits": lambda folder: curve("four_bits", InFourBits(folder=folder)),
    "compiled": lambda: curve("compiled", compile=True),
}


def main() -> None:
    JOB.update(json.loads(sys.argv[-1]))
    folder = Path(JOB["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, *arguments in JOB["cases"]:
        try:
            found = CASES[name](*arguments)
        except Exception as error:  # the other cases can still be seen
            if dist.is_initialized() and dist.get_world_size() > 1:
                raise  # the other ranks wait inside of a collective
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
            if device().type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        is_named = name in ("curve", "hand", "command")
        label = "-".join([name, *arguments[:1]]) if is_named else name
        leave(folder / f"{label}.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
