"""A run resumes from a checkpoint of any layout: the same bits in it, the same curve after it.

| promised | strategies and worlds | tests |
|---|---|---|
| On the same layout a run resumes bit by bit | one process, DDP, FSDP2, ZeRO-2 on 3, ZeRO-3 on 2, HSDP on 4; all on 1 to 4 (nightly) | test_the_same_layout_goes_on_bit_by_bit |
| Under bf16 it resumes from weights in full precision | FSDP2 on 2; ZeRO-2, ZeRO-3 on 2 (nightly) | test_low_precision_goes_on_from_its_full_precision_weights |
| The ranks of all groups of FSDP2 write the model once, and each a part | HSDP on 4 | test_ranks_of_all_groups_write_the_model_once |
| Any layout resumes from any other, losing nothing | from six layouts to ZeRO-3 on 2; from all to all (nightly) | test_any_layout_goes_on_from_any_other, test_the_whole_matrix |
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import Job, json_in, slow_but, trained
from safetensors.torch import load_file

from trainer.checkpoint import discover, store
from trainer.checkpoint.ranges import Ranges, of_rank_files

# Any layout, with and without optimizer state, dropout and averages


Layout = tuple[str, int]
SINGLE: Layout = ("single", 1)
QUICK: list[Layout] = [
    SINGLE,
    ("ddp", 3),
    ("fsdp", 3),
    ("zero2", 3),
    ("zero3", 2),
    ("hsdp", 4),
]  # ZeRO-1 saves as ZeRO-2 does
SHARDED = ("fsdp", "zero1", "zero2", "zero3")
ALL: list[Layout] = [
    SINGLE,
    *(("ddp", world) for world in (2, 3, 4)),
    *((name, world) for name in SHARDED for world in (1, 2, 3, 4)),
    ("zero3_offload", 2),
    ("hsdp", 4),
]
TASKS: dict[str, dict[str, Any]] = {"plain": {}, "sgd": {"sgd": True}, "dropout": {"dropout": 0.3}}
SAVED_AT, STEPS = 4, 8
# 24 is cut evenly by 1 to 4 processes. Of 50 samples an epoch has 3 steps.
CONFIG = {
    **{"task": "resuming:Odd", "max_steps": STEPS, "global_batch_size": 24, "lr": 0.05},
    **{"max_grad_norm": 1.0, "schedule": "cosine", "ema_decay": 0.9},
    **{"log_every": 1, "save_every": SAVED_AT, "keep_last": 5},
}


def launched(layout: Layout, folder: Path, runs: dict[str, dict[str, Any]]) -> Path:
    """Train under a layout. A run that begins with files writes them again at once."""
    how, world = layout
    shared = {**CONFIG, "micro_batch_size": 24 // world}
    configs = {}
    for name, settings in runs.items():
        begins = settings.keys() & {"resume", "weights"}
        hooks = ["resuming:Writes"] if begins else []
        configs[name] = {**shared, "callbacks": hooks, **settings}
    for job in trained(how, folder, configs, world=world).values():
        job.ok()
    return folder


@cache
def unbroken(
    layout: Layout, folder: Path, tasks: tuple[str, ...] = tuple(TASKS), precision: str = "no"
) -> Path:
    """A job that trains each task through, and again from its own checkpoint in the middle."""
    here = folder / f"{layout[0]}{layout[1]}{precision}"
    runs: dict[str, dict[str, Any]] = {}
    for name in tasks:
        runs[name] = {"task_settings": TASKS[name], "mixed_precision": precision}
        middle = checkpoint(here / name, SAVED_AT)
        runs[f"{name}-again"] = {**runs[name], "resume": str(middle)}
    return launched(layout, here, runs)


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / store.name_of(step)


def losses(run: Path) -> dict[int, float]:
    job = Job(code=0, out="", err="", output_dir=run)
    return dict(zip(job.column("step"), job.losses, strict=True))


def opened(path: Path) -> Ranges:
    found = discover.verify(discover.inspect(path))
    assert not found.problem, found
    return of_rank_files(path / name for name in found.files if name.endswith(".safetensors"))


def contents(path: Path, *, streams: bool) -> dict[tuple[str, str], torch.Tensor]:
    """Every tensor of a checkpoint, whole; of other layouts without the random streams."""
    ranges = opened(path)
    kinds = {kind for kind, _ in ranges._pieces if streams or not kind.startswith("rng.")}
    return {
        (kind, name): ranges.whole(kind, name)
        for kind in sorted(kinds)
        for name in ranges.names(kind)
    }


def state(path: Path) -> dict[str, Any]:
    """What belongs to training itself, and not to the way it ran."""
    told = json_in(path / store.STATE)
    return {key: value for key, value in told.items() if key not in ("config", "plan", "spent")}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def assert_equal(one: Path, other: Path, *, streams: bool) -> None:
    ours, theirs = contents(one, streams=streams), contents(other, streams=streams)
    assert set(ours) == set(theirs)
    assert [key for key in ours if not same_bits(ours[key], theirs[key])] == []
    assert state(one) == state(other)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("how", "world"), slow_but(QUICK, ALL))
def test_the_same_layout_goes_on_bit_by_bit(how: str, world: int, folder: Path) -> None:
    check_same_layout(unbroken((how, world), folder))


@pytest.mark.parametrize("how", slow_but(["fsdp"], ["fsdp", "zero2", "zero3"]))
def test_low_precision_goes_on_from_its_full_precision_weights(how: str, folder: Path) -> None:
    out = unbroken((how, 2), folder, ("dropout",), "bf16")
    check_same_layout(out, ["dropout"])
    kept = contents(checkpoint(out / "dropout", SAVED_AT), streams=False)
    learnt = [
        key for key in kept if key[0] in ("parameter", "average") or key[0].startswith("optimizer.")
    ]
    assert {kept[key].dtype for key in learnt} == {torch.float32}
    weights = torch.cat([kept[key] for key in learnt])
    assert not torch.equal(weights, weights.bfloat16().float()), (
        "more digits than the layers compute with"
    )


def test_ranks_of_all_groups_write_the_model_once(folder: Path) -> None:
    groups, alone = (unbroken(layout, folder) / "plain" for layout in (("hsdp", 4), SINGLE))
    assert json_in(groups / "plan.json")["fsdp"]["dp_replicate_size"] == 2
    elements = []
    for run in (groups, alone):
        files = sorted(checkpoint(run, SAVED_AT).glob("rank-*.safetensors"))
        parts = [load_file(file) for file in files]
        elements.append(
            [sum(part[key].numel() for key in part if "rng." not in key) for part in parts]
        )
    assert len(elements[0]) == 4 and all(elements[0])
    assert sum(elements[0]) == elements[1][0]


def check_same_layout(run: Path, tasks: Iterable[str] = tuple(TASKS)) -> None:
    for name in tasks:
        whole, again = run / name, run / f"{name}-again"
        assert list(losses(again)) == [5, 6, 7, 8]
        assert losses(again) == {
            step: loss for step, loss in losses(whole).items() if step > SAVED_AT
        }
        for step in (SAVED_AT, STEPS):
            assert_equal(checkpoint(whole, step), checkpoint(again, step), streams=True)


def test_any_layout_goes_on_from_any_other(folder: Path) -> None:
    check_any_to(("zero3", 2), QUICK, "plain", folder)


def check_any_to(layout: Layout, sources: list[Layout], task: str, folder: Path) -> None:
    alone = losses(unbroken(SINGLE, folder) / task)
    paths = {
        f"{name}{world}": checkpoint(unbroken((name, world), folder) / task, SAVED_AT)
        for name, world in sources
    }
    exported = unbroken(SINGLE, folder) / task / "model"
    weights = {"exported": exported, "saved": checkpoint(exported.parent, STEPS)}
    runs = {
        name: {"task_settings": TASKS[task], "resume": str(path)} for name, path in paths.items()
    }
    runs |= {name: {"weights": str(path)} for name, path in weights.items()}
    out = launched(layout, folder / f"to-{layout[0]}{layout[1]}-{task}-of-{len(sources)}", runs)
    for name in weights:  # the weights alone, from the model's file as from a checkpoint
        begun = out / name / "begun/model.safetensors"
        assert begun.read_bytes() == (exported / "model.safetensors").read_bytes()
    for name, path in paths.items():
        # What was read by another layout and written again holds the same bits: nothing was lost or
        # mixed up.
        assert_equal(path, checkpoint(out / name, SAVED_AT), streams=False)
        resumed = losses(out / name)
        assert list(resumed) == [5, 6, 7, 8]
        # Layouts add in another order: rounding alone, and what it grows to in eight steps.
        assert resumed[5] == pytest.approx(alone[5], rel=2e-6), name
        assert list(resumed.values()) == pytest.approx(list(alone.values())[SAVED_AT:], rel=1e-4), (
            name
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", ALL)
@pytest.mark.parametrize("task", ["plain", "sgd"])
def test_the_whole_matrix(task: str, layout: Layout, folder: Path) -> None:
    check_any_to(layout, ALL, task, folder)
