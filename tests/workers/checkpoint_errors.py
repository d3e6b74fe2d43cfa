"""Run by torchrun under one strategy: what every rank must say alike when checkpoints cannot be
written or taken.

    torchrun ... tests/workers/checkpoint_errors.py ACCEL_YAML FOLDER

Each case is a training of its own in the same processes; ``results.json`` holds what each rank saw.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from resuming import Odd
from torch import nn

import trainer
from trainer import Callback, Run, StepInfo, TrainConfig, Trainer
from trainer.checkpoint import contents, discover, store
from trainer.launching import Launched, launch


@dataclass(frozen=True, kw_only=True)
class Case(Odd):
    """Some layers learn, the others are frozen."""

    learns: tuple[str, ...] = ("embedding", "middle", "back", "scale")

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in self.learns)
        return model


class Holds(Callback):
    def __init__(self, value: Any) -> None:
        self.value = value

    def on_step(self, trainer: Run, info: StepInfo) -> None: ...

    def state_dict(self) -> Mapping[str, Any]:
        return {"value": self.value}


def configured(folder: Path, **settings: Any) -> TrainConfig:
    given = {
        "max_steps": 4, "save_every": 2, "keep_last": 9, "log_every": 100, "lr": 0.05, "ema_decay": 0.9, "micro_batch_size": 12,
        "global_batch_size": 24, **settings,
    }  # fmt: skip
    return TrainConfig(task="checkpoint_errors:Case", output_dir=str(folder), **given)


def built(
    launched: Launched, task: Case, folder: Path, *callbacks: Callback, **settings: Any
) -> Trainer:
    launched.accelerator.free_memory()  # of the case before, which may not have come to its end
    return Trainer(task, configured(folder, **settings), launched, callbacks=callbacks)


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except trainer.TrainerError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def steps(folder: Path) -> list[int]:
    return [found.step for found in discover.listing(folder / "checkpoints")]


def differences(run: Trainer, path: Path) -> list[str]:
    """The parameters that are not those of a checkpoint, and those whose optimizer state is another
    one.
    """
    kept, strategy = discover.opened(discover.inspect(path)), run.run.strategy
    wrong = []
    for shard in strategy.shards(trainable=None):
        out = torch.empty_like(shard.tensor)
        kept.ranges.read(str(kept.kind(shard.name)), shard.name, shard.start, out)
        wrong += [] if torch.equal(out, shard.tensor) else [shard.name]
        held = (
            strategy.optimizer.state.get(shard.state_key, {}).get("exp_avg")
            if shard.state_key is not None
            else None
        )
        if held is None:
            continue
        flat = getattr(held, "to_local", lambda held=held: held)().reshape(-1)
        moment = flat[shard.state_offset : shard.state_offset + out.numel()]
        out.zero_()  # of one that was frozen there is none
        if kept.ranges.holds("optimizer.exp_avg", shard.name):
            kept.ranges.read("optimizer.exp_avg", shard.name, shard.start, out)
        wrong += [] if torch.equal(out, moment) else [f"exp_avg of {shard.name}"]
    return wrong


@contextlib.contextmanager
def blind(path: Path) -> Iterator[None]:
    """Show rank 1 nothing of a checkpoint, as an old listing of a network file system does."""
    real = contents.path_inside

    def path_inside(folder: Path, name: object) -> Path:
        if dist.get_rank() == 1 and folder == path:
            raise FileNotFoundError(2, "No such file or directory", str(folder / str(name)))
        return real(folder, name)

    contents.path_inside = path_inside
    try:
        yield
    finally:
        contents.path_inside = real


def main() -> None:
    accel, folder = sys.argv[1], Path(sys.argv[2])
    launched = launch(configured(folder), accel_config=accel)
    rank, results = dist.get_rank(), {}

    # State that cannot be saved is the main process's to find out.
    settings = {"on_save_error": "continue"}
    results["state"] = said(
        lambda: built(launched, Case(), folder / "state", Holds({1}), **settings)
    )

    # Frozen and thawed.
    first = ("embedding", "middle")
    built(launched, Case(learns=first), folder / "first", max_steps=2).fit()
    path = folder / "first/checkpoints" / store.name_of(2)
    for name, learns in (
        ("thawed", (*first, "back", "scale")),
        ("frozen", ("middle",)),
        ("other", ("back",)),
    ):
        settings = {"resume": str(path), "allow_config_change": True}
        run = built(launched, Case(learns=learns), folder / name, **settings)
        results[name] = differences(run, path), said(run.fit), steps(folder / name)
    results["ends"] = said(
        lambda: built(launched, Case(learns=first), folder / "ends", resume=str(path), max_steps=1)
    )

    # A checkpoint that one rank does not see is not damaged; one whose bytes are wrong is,
    # whichever rank reads them.
    seen = folder / "seen"
    built(launched, Case(), seen).fit()
    newest = seen / "checkpoints" / store.name_of(4)
    with blind(newest):
        results["blind"] = said(lambda: built(launched, Case(), seen, resume="auto")), steps(seen)
    if rank == 0:
        names = sorted(discover.inspect(newest).files)
        with open(newest / names[1], "r+b") as file:  # of which rank 1 reads every byte
            file.seek(20)
            file.write(b"#")
    results["wrong"] = (
        said(lambda: built(launched, Case(), seen, resume="auto", max_steps=3)),
        steps(seen),
    )

    # A model that the main process cannot write, while the others are inside the collectives that
    # gather it.
    blocked = seen / "config.yaml/model"
    one = built(launched, Case(), folder / "export")
    results["export"] = said(lambda: one.run.export(blocked))
    one.run.export(folder / "export/model")
    results["exported"] = (folder / "export/model/model.safetensors").is_file()

    (folder / f"results-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    trainer.run_and_exit(main)
