"""Each strategy on the device: right numbers, checkpoints of the others, what users bring, no wait
between steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, installed, launch_file, ranks

from trainer.commands.curves import LOW

ENGINE = ["zero1", "zero2", "zero3"] if installed("deepspeed") else []
STRATEGIES = ["replicas", "fsdp", *ENGINE]
IN_4_BITS = STRATEGIES if installed("bitsandbytes", "peft") else []
COMPILED = ["replicas", "fsdp", *ENGINE[1:2]]
OFFLOADED = ["fsdp_offload", *(["zero3_offload"] if ENGINE else [])]
# Kernels of other shapes add in another order; with eps 1e-4 Adam does not take the sign of what is
# left.
EXACT = 1e-4
Note = Callable[..., None]
Results = Mapping[str, dict[str, Any]]


@cache
def job(folder: Path, how: str, world: int) -> Results:
    """Train all cases of a launch file in one job, and return what they left."""
    pretrained, own = str(folder / "pretrained"), folder / how
    if how == "hand":
        cases = [
            ["write_pretrained", pretrained],
            ["hand", "no"],
            ["hand", "bf16"],
            ["hand", "fp16"],
        ]
        return start(own, cases, 0, {})
    if how == "repeats":
        return start(own, [["repeats"], ["copies"]], 0, {})
    if how in OFFLOADED:
        return start(own, [["plain"]], world, launch_files(folder, how, world))
    cases = [["curve", precision] for precision in ("no", "bf16", "fp16")]
    before = STRATEGIES[STRATEGIES.index(how) - 1]
    if how != STRATEGIES[0]:
        job(folder, before, world)
        cases.append(["resume", str(folder / before)])
    job(folder, "hand", world)
    cases += [["pretrained", pretrained]]
    if how in IN_4_BITS:
        cases.append(["four_bits", pretrained])
    if how in STRATEGIES[:2]:
        cases += [["rows"], ["channels_last"], ["waits"]]
    if how in COMPILED:
        cases += [["compiled"]]
    return start(own, cases, world, launch_files(folder, how, world))


def launch_files(folder: Path, how: str, world: int) -> dict[str, str]:
    """Return the committed file for as many processes; for replicas in one process there is none."""
    if how == "replicas" and world == 1:
        return {}
    path = folder / f"{how}.yaml"
    launch_file(path, {"replicas": "ddp", "fsdp_offload": "fsdp"}.get(how, how), world)
    if how == "fsdp_offload":
        path.write_text(
            path.read_text().replace(
                "fsdp_config:\n", "fsdp_config:\n  fsdp_offload_params: true\n"
            )
        )
    return {"accel_config": str(path)}


def start(own: Path, cases: list[list[str]], world: int, files: dict[str, str]) -> Results:
    asked = json.dumps({"file": files, "folder": str(own), "cases": cases})
    alone = world <= 1 and not files
    done = ranks(["tests/workers/gpu_cases.py", asked], 0 if alone else world, timeout=400)
    left = {path.stem: json.loads(path.read_text()) for path in own.glob("*.json")}
    if done.returncode:
        left["ended"] = {
            "error": f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        }
    return left


def result(results: Results, name: str) -> dict[str, Any]:
    """Return what a case left.

    Raises:
        AssertionError: it failed, or its job ended before.
    """
    told = results.get(name) or results.get("ended") or {"error": "nothing was left"}
    assert "error" not in told, f"{name}: {told['error']}"
    return told


def furthest(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the largest relative difference of two curves, over the steps of the first."""
    return max(abs(loss - other[step]) / abs(other[step]) for step, loss in one.items())


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_losses_are_those_of_a_plain_loop(
    strategy: str, precision: str, folder: Path, gpus: int, note: Note
) -> None:
    told = result(job(folder, strategy, gpus), f"curve-{precision}")
    by_hand = result(job(folder, "hand", gpus), f"hand-{precision}")["losses"]
    gap = furthest(told["losses"], by_hand)
    note(furthest_loss=gap, **told["plan"], skipped=told["skipped"])
    assert len(told["losses"]) == len(by_hand) and told["skipped"] == 0
    assert gap <= (EXACT if precision == "no" else LOW.step)


@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_a_checkpoint_of_another_strategy_goes_on(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    told = result(job(folder, strategy, gpus), "resume")["losses"]
    before = STRATEGIES[STRATEGIES.index(strategy) - 1]
    unbroken = result(job(folder, before, gpus), "curve-no")["losses"]
    gap = furthest(told, unbroken)
    note(saved_by=before, furthest_loss=gap)
    assert sorted(told) == ["5", "6", "7", "8"] and gap <= EXACT


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pretrained_model_trains(strategy: str, folder: Path, gpus: int) -> None:
    losses = list(result(job(folder, strategy, gpus), "pretrained")["losses"].values())
    first = list(result(job(folder, STRATEGIES[0], gpus), "pretrained")["losses"].values())
    assert losses == pytest.approx(first, rel=LOW.step)


@pytest.mark.parametrize("strategy", IN_4_BITS)
def test_adapters_learn_on_a_model_in_4_bits(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    told = job(folder, strategy, gpus).get("four_bits", {})
    if strategy == "fsdp" and "FSDP2 of torch 2.11" in told.get("error", ""):
        note(refused=told["error"])  # by the package, in a sentence; torch itself would fail
        return
    losses = list(result(job(folder, strategy, gpus), "four_bits")["losses"].values())
    first = list(result(job(folder, STRATEGIES[0], gpus), "four_bits")["losses"].values())
    whole = list(result(job(folder, strategy, gpus), "pretrained")["losses"].values())
    note(first_loss=losses[0], of_whole_weights=whole[0])
    assert losses == pytest.approx(first, rel=LOW.step) and losses[-1] < losses[0]
    assert losses[0] != whole[0] and losses[0] == pytest.approx(whole[0], rel=0.05)


@pytest.mark.parametrize("strategy", COMPILED)
def test_a_compiled_model_has_the_same_losses(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    results = job(folder, strategy, gpus)
    gap = furthest(result(results, "compiled")["losses"], result(results, "curve-bf16")["losses"])
    note(furthest_loss=gap)
    assert gap <= LOW.step


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_channels_last_has_the_same_losses(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    results = job(folder, strategy, gpus)
    gap = furthest(result(results, "channels_last")["losses"], result(results, "rows")["losses"])
    note(furthest_loss=gap)
    assert gap <= 1e-3, "convolutions may compute in TF32, of three digits"


@pytest.mark.parametrize("strategy", STRATEGIES[:2])
def test_nothing_waits_for_the_device_between_logged_steps(
    strategy: str, folder: Path, gpus: int
) -> None:
    assert result(job(folder, strategy, gpus), "waits")["steps"] == 8


@pytest.mark.parametrize("how", OFFLOADED)
def test_offload_has_the_same_losses(how: str, folder: Path, gpus: int, note: Note) -> None:
    told = result(job(folder, how, gpus), "plain")
    gap = furthest(told["losses"], result(job(folder, "hand", gpus), "hand-bf16")["losses"])
    note(furthest_loss=gap, **told["plan"])
    assert gap <= LOW.step


def test_deterministic_runs_repeat_bit_by_bit(folder: Path, gpus: int) -> None:
    first, second, third = result(job(folder, "repeats", gpus), "repeats")["losses"]
    assert first == second
    assert third == {step: loss for step, loss in first.items() if int(step) > 4}, (
        "gone on in the middle"
    )


def test_a_batch_is_copied_while_the_device_computes(folder: Path, gpus: int) -> None:
    assert result(job(folder, "repeats", gpus), "copies")["copied_beside"]


def test_the_repository_is_what_runs() -> None:
    import trainer

    assert Path(trainer.__file__).is_relative_to(ROOT)
