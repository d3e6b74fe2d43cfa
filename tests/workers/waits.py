"""Run under several launch files, one after the other: what a training step reads back to the host.

    ranks tests/workers/waits.py FOLDER [ACCEL_CONFIG ...]

On a GPU each of these reads would make the host wait for all that is queued on the device. The
project's own code takes its branches for GPUs here: to it alone a tensor says that it lies on one,
and an event is one that counts how often it is waited for. Leaves ``<folder>/found.json``: for each
file and case how often each place asked, in two steps of two micro-batches that are not logged.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from of_all_ranks import leave
from torch.utils._python_dispatch import TorchDispatchMode

import trainer
from trainer import TrainConfig, Trainer
from trainer.language import CausalLM
from trainer.launching import launch

ROOT = Path(__file__).resolve().parents[2]
# Operations whose result, or whose size, the host has to know.
READS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "is_nonzero",
    "aten.equal",
    "repeat_interleave.Tensor",
    "allclose",
)
COUNTED: Counter[str] = Counter()
# Settings of the task, settings of the training.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": ({"packing": "none"}, {}),
    "masked": ({"attention": "sdpa"}, {"on_nan": "skip"}),
    "sgd": ({}, {"on_nan": "skip", "optimizer": "sgd"}),
    "unclipped": ({}, {"checks": "none", "max_grad_norm": None}),
}


def note() -> None:
    """Count a read."""
    COUNTED[innermost_place()] += 1


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


class Reads(TorchDispatchMode):
    """Notes each operation that reads back."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        if any(part in name for part in READS):
            note()
        elif "index.Tensor" in name or "index_put" in name:
            chosen = [part for part in args[1] if part is not None]
            if any(part.dtype in (torch.bool, torch.uint8) for part in chosen):
                note()  # it has to know how many are chosen
        return function(*args, **(kwargs or {}))


def noted(method: Any) -> Any:
    """A method of Tensor that copies to the host and is no operation; a GPU would be waited for."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if WATCHED:
            note()
        return method(self, *args, **kwargs)

    return call


WATCHED: list[bool] = []


class Event:
    """As torch.cuda.Event."""

    def __init__(self, **settings: Any) -> None:
        pass

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        note()


def pretend() -> None:
    """Make the project's own code take its branches for GPUs."""
    own = str(ROOT / "trainer")

    def is_cuda(self: Any) -> bool:
        return sys._getframe(1).f_code.co_filename.startswith(own)

    empty: Any = torch.empty
    torch.Tensor.is_cuda = property(is_cuda)  # type: ignore[assignment, misc]
    torch.cuda.Event = Event  # type: ignore[assignment, misc]
    torch.empty = lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs)
    for name in ("tolist", "cpu", "numpy"):
        setattr(torch.Tensor, name, noted(getattr(torch.Tensor, name)))


@dataclass(frozen=True, kw_only=True)
class Words(CausalLM):
    """A language task; a subclass, so that this file can be its module."""


def reads(case: str, folder: Path, files: dict[str, str]) -> dict[str, int]:
    """Train some steps, and count the reads of two that are not logged."""
    of_task, settings = CASES[case]
    config = TrainConfig(
        task="waits:Words",
        output_dir=str(folder / f"{case}-{len(list(folder.iterdir()))}"),
        max_steps=8, log_every=1000, keep_last=0, lr=1e-3, schedule="constant", warmup_steps=0,
        micro_batch_size=2, accumulation_steps=2,
        **{"max_grad_norm": 1.0, "mixed_precision": "bf16", **settings},
    )  # fmt: skip
    launched = launch(config, **files)
    task = Words(
        model=str(folder / "llama"),
        data=str(folder / "texts.jsonl"),
        cache_dir=str(folder / "cache"),
        sequence_length=64,
        **of_task,
    )
    run = Trainer(task, config, launched)

    mode = Reads()
    for info in run.steps():
        if info.step == 3:
            COUNTED.clear()
            WATCHED.append(True)
            mode.__enter__()
        if info.step == 5:
            mode.__exit__(None, None, None)
            WATCHED.clear()
            break
    found = dict(COUNTED)
    run.close()
    return found


def main() -> None:
    pretend()
    folder, found = Path(sys.argv[1]), {}
    for accel_config in sys.argv[2:] or [""]:
        files = {"accel_config": accel_config} if accel_config else {}
        for case in CASES:
            name = f"{Path(accel_config).stem or 'single'} {case}"
            found[name] = reads(case, folder, files)
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
