"""The same script and global batch have the same losses under every strategy, world and launcher.

| promised | strategies and worlds | tests |
|---|---|---|
| 50 steps are those of one process, at every accumulation | all of benchmarks/results/curves.md (nightly) | test_the_curve_is_that_of_one_process |
| What was asked for runs, and its loss falls | all on 2; under every launcher (nightly) | test_runs_as_asked |
| The exported model is the one that was trained | the same jobs | test_export_is_the_model_that_was_trained |
| Losses and tensors in the model file are those of one process | all on 2 | test_files_and_curves_equal_one_process |

The tables of benchmarks/results/curves.md are made by ``benchmarks/curves.py``, which trains here as well.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from digits_cnn import DigitsCNN
from launchers import ROOT, STRATEGIES, Job, command, run, some_quick, wrapper_of
from safetensors.torch import load_file
from small_examples import digits
from torch.utils.data import DataLoader

from trainer import Task, load_export
from trainer.metrics import WeightedSums

sys.path.insert(0, str(ROOT / "benchmarks"))

from curves import (
    ACCUMULATIONS,
    BOUND,
    FIRST_STEP,
    LAYOUTS,
    REFERENCE,
    STEPS,
    TASKS,
    Curves,
    difference,
    run_layout,
)

# Long curves, at every accumulation


@cache
def curves(strategy: str, world: int, folder: Path) -> Curves:
    return run_layout(strategy, world, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world"), LAYOUTS)
def test_the_curve_is_that_of_one_process(strategy: str, world: int, folder: Path) -> None:
    alone_as, alone_on, alone_accumulation = REFERENCE
    alone = curves(alone_as, alone_on, folder)
    found = curves(strategy, world, folder)
    for name in TASKS:
        reference = alone[f"{name}, {alone_accumulation}"]
        assert len(reference["loss"]) == STEPS and reference["loss"][-1] < reference["loss"][0]
        for accumulation in ACCUMULATIONS:
            case = f"{name}, {accumulation}"
            for key in ("loss", "norm"):
                off = difference(found[case][key], reference[key])
                assert off[0] <= FIRST_STEP and max(off) <= BOUND, (case, key, off)


# Every strategy under every launcher


# A job by a launcher costs 15 seconds, a forked one two: launchers have their quick tests in
# test_launchers.py and test_exits.py. ZeRO-1 and ZeRO-2 are ZeRO-3 with less to exchange.
NAMED = {"ranks": "environment"}
QUICK = ("ddp", "fsdp", "zero3")
CASES = [
    pytest.param(
        strategy,
        launcher,
        marks=() if strategy in QUICK and launcher == "ranks" else pytest.mark.slow,
    )
    for strategy in STRATEGIES
    for launcher in ("accelerate", "torchrun", "deepspeed", "ranks")
    if launcher != "deepspeed" or strategy.startswith("zero")
]
TYPES = {"ddp": "MULTI_CPU", "fsdp": "FSDP"}


@cache
def job(strategy: str, launcher: str, folder: Path) -> Job:
    words = command(launcher, strategy, world=0 if strategy == "single" else 2)
    words += digits(steps=12, warmup_steps=2)
    # The same global batch in one process: two micro-batches instead of two ranks.
    words += ["--accumulation_steps", "2"] if strategy == "single" else []
    built = {"TORCH_EXTENSIONS_DIR": str(folder / "built")}
    return run(words, folder / f"{strategy}-{launcher}", environment=built).ok()


def evaluate_here(task: Task, model: torch.nn.Module) -> dict[str, float]:
    """Evaluation written anew, in this process, without the trainer's loop."""
    from accelerate import Accelerator

    data, sums = task.build_data(), WeightedSums()
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(data.evaluation, batch_size=16, collate_fn=data.collate):
            sums.add(task.evaluation_step(model, batch))
    return sums.reduce(Accelerator(cpu=True), sums.layout())


@pytest.mark.parametrize(("strategy", "launcher"), CASES)
def test_runs_as_asked(strategy: str, launcher: str, folder: Path) -> None:
    done = job(strategy, launcher, folder)
    plan = done.plan
    assert (plan["strategy"], plan["world_size"], plan["launcher"]) == (
        strategy,
        2,
        NAMED.get(launcher, launcher),
    )
    assert plan["distributed_type"] == TYPES.get(strategy, "DEEPSPEED")
    assert plan["model_class"].startswith(wrapper_of(strategy))
    assert plan["rehearsal"] and plan["device"] == "cpu"
    losses = done.losses
    assert sum(losses[-3:]) / 3 < 0.9 * losses[0], f"the loss does not fall: {losses}"
    assert "Warning" not in done.err, (
        done.err
    )  # one a rank, about what no user can change, would hide what matters
    # DeepSpeed would build an operator for inference, and hang on the lock of a build that was
    # killed.
    assert not (folder / "built").exists(), "a rehearsal compiles nothing"


@pytest.mark.parametrize(("strategy", "launcher"), CASES)
def test_export_is_the_model_that_was_trained(strategy: str, launcher: str, folder: Path) -> None:
    done = job(strategy, launcher, folder)
    task = DigitsCNN()
    model = task.build_model()
    load_export(model, done.output_dir / "model")
    # Evaluated in float32 on the same samples in other batches: sums differ by rounding alone.
    assert evaluate_here(task, model)["loss"] == pytest.approx(
        done.evaluation["eval/loss"], rel=2e-6
    )


@pytest.mark.parametrize("strategy", some_quick(*QUICK))
def test_files_and_curves_equal_one_process(strategy: str, folder: Path) -> None:
    alone = job("single", "ranks", folder)
    done = job(strategy, "ranks", folder)
    ours, theirs = (load_file(run.output_dir / "model/model.safetensors") for run in (alone, done))
    assert list(ours) == list(theirs)
    for key, tensor in ours.items():
        assert (theirs[key].shape, theirs[key].dtype) == (tensor.shape, tensor.dtype), key
    # The first step differs by the order of float32 sums only; Adam's division amplifies that
    # afterwards.
    assert done.losses[0] == pytest.approx(alone.losses[0], rel=1e-6)
    assert done.losses == pytest.approx(alone.losses, rel=1e-3)
