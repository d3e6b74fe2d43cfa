"""Each strategy on the device: right numbers, checkpoints of the others, what users bring, no wait
between steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from doc_pages import places_that_wait
from gpu_jobs import ENGINE, STRATEGIES, Results, job_pool, launch_files, result, start
from launchers import HIDE_GPUS, ROOT, installed

from trainer.commands.curves import LOW
from trainer.config.documents import read_document
from trainer.rehearsal.job import Job

FAKE = "FAKE_GPUS" in os.environ  # has no values, which 4 bits need
IN_4_BITS = STRATEGIES if installed("bitsandbytes", "peft") and not FAKE else []
COMPILED = ["replicas", "fsdp", *ENGINE[1:2]]
SAVED_BY = ["cpu", *STRATEGIES]  # each goes on from the one before
BY_HAND = [["hand", "no"], ["hand", "bf16"], ["hand", "fp16"]]
OFFLOADED = ["fsdp_offload", *(["zero3_offload"] if ENGINE else [])]
# Kernels of other shapes add in another order; with eps 1e-4 Adam does not take the sign of what is
# left.
EXACT = 1e-4
# A step of 2 GiB on a GPU, most of them activations. Five jobs take them at the same time.
SMALL = os.environ.get("DEVICE") == "cpu"
LARGE = [
    "--task=observed:Llama",
    f"--task_settings.length={16 if SMALL else 1024}",
    f"--micro_batch_size={2 if SMALL else 64}",
    *("--max_steps=3", "--mixed_precision=bf16", "--keep_last=0", "--lr=1e-3"),
]
Note = Callable[..., None]


@cache
def jobs(folder: Path, world: int) -> dict[str, Future[Results]]:
    """Start all jobs at the same time: most of a job is its set-up, on a processor of its own."""
    pool = job_pool()
    found = {"hand": pool.submit(start, folder / "hand", BY_HAND, 0, {})}
    on_cpu = [["curve", "no"]]
    found["cpu"] = pool.submit(start, folder / "cpu", on_cpu, 0, {}, HIDE_GPUS)
    for how in STRATEGIES:
        files = launch_files(folder, how, world)
        found[how] = pool.submit(start, folder / how, cases_of(how, folder), world, files)
    found["repeats"] = pool.submit(start, folder / "repeats", [["repeats"]], 0, {})

    def go_on(before: str, how: str) -> Results:
        found[before].result()  # has a checkpoint
        files = launch_files(folder, how, world)
        return start(folder / f"{how}-goes-on", [["resume", str(folder / before)]], world, files)

    for before, how in pairwise(SAVED_BY):
        found[f"{how} goes on"] = pool.submit(go_on, before, how)
    return found


def cases_of(how: str, folder: Path) -> list[list[str]]:
    """Return the cases of a strategy. A single job trains all."""
    pretrained = str(folder / f"{how}-weights")
    cases = [["curve", precision] for precision in ("no", "bf16", "fp16")]
    cases += [["write_pretrained", pretrained], ["pretrained", pretrained], ["waits"]]
    cases.append(["command", "large", json.dumps(LARGE)])
    if how in IN_4_BITS:
        cases.append(["four_bits", pretrained])
    if how in COMPILED:
        cases.append(["compiled"])
    return cases


def job(folder: Path, how: str, world: int) -> Results:
    """Return the results of a job, by case."""
    return jobs(folder, world)[how].result()


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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_of_the_cpu_or_another_strategy_goes_on(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    told = result(job(folder, f"{strategy} goes on", gpus), "resume")["losses"]
    before = SAVED_BY[SAVED_BY.index(strategy) - 1]
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
    if strategy == "fsdp" and "only Tensors of floating point" in told.get("error", ""):
        note(refused=told["error"])  # by torch 2.11, not by 2.13
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_waits_for_the_device_where_the_page_says(
    strategy: str, folder: Path, gpus: int, note: Note
) -> None:
    told = result(job(folder, strategy, gpus), "waits")
    note(waits=told["waits"])
    assert told["steps"] == 8
    assert told["waits"].keys() <= places_that_wait()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rehearsal_says_what_a_step_takes(
    strategy: str, folder: Path, gpus: int, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLAS takes a workspace of 0.07 to 0.08 GiB beside the tensors, as measured on an H200."""
    workspace = 0 if FAKE else 0.075 * 2**30
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/workers"))
    files = launch_files(folder, strategy, gpus)
    file = files["accel_config"] if files else str(ROOT / "accel_configs/single.yaml")
    launched = dict(read_document(file).data)
    (rehearsed,) = Job(launch_file=launched, words=LARGE, gpus=gpus, gpu="H100").rehearse()
    predicted = rehearsed["most"]
    told = result(job(folder, strategy, gpus), "command-large")
    note(measured=told["bytes"], rehearsed=predicted)
    assert told["plan"]["strategy"] == rehearsed["plan"]["strategy"]
    if not SMALL:
        assert predicted == pytest.approx(told["bytes"] - workspace, rel=0.02)


@pytest.mark.parametrize("how", OFFLOADED)
def test_offload_has_the_same_losses(how: str, folder: Path, gpus: int, note: Note) -> None:
    files = launch_files(folder, how, gpus)
    results = start(folder / how, [["hand", "bf16"], ["plain"]], gpus, files)
    told = result(results, "plain")
    gap = furthest(told["losses"], result(results, "hand-bf16")["losses"])
    note(furthest_loss=gap, **told["plan"])
    assert gap <= LOW.step


def test_deterministic_runs_repeat_bit_by_bit(folder: Path, gpus: int) -> None:
    first, second, third = result(job(folder, "repeats", gpus), "repeats")["losses"]
    assert first == second
    assert third == {step: loss for step, loss in first.items() if int(step) > 4}, (
        "gone on in the middle"
    )


def test_the_repository_is_what_runs() -> None:
    import trainer

    assert Path(trainer.__file__).is_relative_to(ROOT)
