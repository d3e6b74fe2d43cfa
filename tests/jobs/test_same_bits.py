"""``same_bits: true``: no bit of a run depends on its layout.

| promised | strategies and worlds | tests |
|---|---|---|
| Losses, norms, evaluations and exported weights have the bits of one process, in float32 and bf16, over the end of an epoch, with cross attention, tied weights and dropout | DDP on 2, FSDP2 on 3, ZeRO-2 on 2, ZeRO-3 on 3; HSDP, ZeRO-1 and all on 1 to 4 (nightly) | test_no_bit_depends_on_the_layout |
| A run that goes on under another layout has the bits of a run that nobody stopped | ZeRO-3 on 3, then DDP on 2 | test_no_bit_depends_on_a_resume |
| A replay on one process finds nothing, or names step, tensor, rank and micro-batch of a wrong bit | DDP on 2; FSDP2 on 3 (nightly) | test_a_replay_names_a_wrong_bit |
| A replay under a launch file, and parity --bits, compare bits too | FSDP2 on 2; DDP, ZeRO-3 on 2 (nightly) | test_a_replay_runs_on_another_layout, test_parity_compares_bits |
| A replay names a tensor whose weight or state was changed | FSDP2 on 3 | test_a_replay_names_a_changed_tensor |
| Without the mode they differ | DDP on 2 | test_without_the_mode_bits_differ |
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, STRATEGIES, completed, json_in, launch_file, ranks, worked, wrapper_of

CASES = ("cross", "cross bf16", "tied", "tied bf16")
MORE = ("sgd", "average", "muon")
QUICK = [("ddp", 2), ("fsdp", 3), ("zero2", 2), ("zero3", 3)]
EVERY = [
    (name, world) for name in STRATEGIES for world in (1, 2, 3, 4) if (name, world) != ("ddp", 1)
]
NIGHTLY = [layout for layout in (*EVERY, ("hsdp", 4)) if layout not in QUICK]
NUMBERS = ("losses", "norms", "evaluations", "digests", "weights")


def file_of(strategy: str, world: int, folder: Path) -> Path:
    """Return the launch file of a strategy. Under HSDP two groups hold copies of the model."""
    if strategy == "hsdp":
        return ROOT / "accel_configs" / "hsdp.yaml"
    return launch_file(folder / "accel.yaml", strategy, world)


@cache
def numbers(
    strategy: str, world: int, cases: tuple[str, ...], folder: Path, *settings: str
) -> dict[str, Any]:
    place = folder / f"{strategy}-{world}-{cases[-1]}-{len(settings)}"
    place.mkdir()
    words: list[Any] = ["tests/workers/same_bits.py", place, ",".join(cases), *settings]
    if strategy != "single":
        words.append(file_of(strategy, world, place))
    worked(words, 0 if strategy == "single" else world)
    return {"folder": place, **json_in(place / "found.json")}


def differing(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, list[str]]:
    """Return the steps and tensors whose bits differ, by kind of number."""
    assert all(found[kind].keys() == expected[kind].keys() for kind in NUMBERS)
    return {
        kind: names
        for kind in NUMBERS
        if (names := [key for key in expected[kind] if found[kind][key] != expected[kind][key]])
    }


def compare(strategy: str, world: int, cases: tuple[str, ...], folder: Path) -> None:
    alone, found = numbers("single", 1, cases, folder), numbers(strategy, world, cases, folder)
    for case in cases:
        assert found[case]["world"] == world
        assert found[case]["class"].startswith(wrapper_of(strategy.replace("hsdp", "fsdp")))
        assert len(alone[case]["losses"]) == 3
        assert len(alone[case]["evaluations"]) == 2
        assert differing(found[case], alone[case]) == {}, case


@pytest.mark.parametrize(
    ("strategy", "world", "cases"),
    [
        *((*layout, CASES) for layout in QUICK),
        *(pytest.param(*layout, CASES, marks=pytest.mark.slow) for layout in NIGHTLY),
        *(pytest.param(*layout, MORE, marks=pytest.mark.slow) for layout in QUICK),
    ],
)
def test_no_bit_depends_on_the_layout(
    strategy: str, world: int, cases: tuple[str, ...], folder: Path
) -> None:
    compare(strategy, world, cases, folder)


def test_without_the_mode_bits_differ(folder: Path) -> None:
    alone, found = (numbers(*layout, ("off",), folder) for layout in (("single", 1), ("ddp", 2)))
    assert len(differing(found["off"], alone["off"])["weights"]) > 10


def test_no_bit_depends_on_a_resume(folder: Path) -> None:
    alone = numbers("single", 1, ("saved",), folder)["saved"]
    first = numbers("zero3", 3, ("saved",), folder, "stop_at=2")
    assert list(first["saved"]["losses"]) == ["1", "2"]
    checkpoint = first["folder"] / "saved" / "checkpoints" / "step-00000002"
    second = numbers("ddp", 2, ("saved",), folder, f"resume={checkpoint}")["saved"]
    assert list(second["losses"]) == ["3", "4", "5"] and second["world"] == 2
    assert second["weights"] == alone["weights"]
    for kind in ("losses", "norms", "digests", "evaluations"):
        joined = first["saved"][kind] | second[kind]
        assert {**alone[kind], **joined} == alone[kind] and "5" in joined


# -- replays --------------------------------------------------------------------------------------


def replayed(
    found: dict[str, Any], case: str, step: int, *more: object, world: int = 0
) -> tuple[int, str]:
    """Replay a run, by default on one process, and return the exit code and the text."""
    words = ["tests/workers/same_bits.py", "replay", found["folder"] / case, "--step", step]
    done = ranks([*words, *more], world)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("strategy", "world"), [("ddp", 2), pytest.param("fsdp", 3, marks=pytest.mark.slow)]
)
def test_a_replay_names_a_wrong_bit(strategy: str, world: int, folder: Path) -> None:
    """The bit is so small that no loss, norm or weight shows it."""
    found = numbers(strategy, world, ("planted",), folder)
    code, text = replayed(found, "planted", 4)
    assert code == 1, text
    named = "rank 1, its micro-batch 3; gradients of layers.1.wide.weight (1 of 37)"
    assert f"step 4 DIFFERS: {named}\nthe same to the bit: steps 3" in text
    assert "Traceback" not in text

    code, text = replayed(found, "planted", 2)
    assert code == 0 and "steps 1 to 2: nothing differs" in text, text


@pytest.mark.slow
def test_a_replay_runs_on_another_layout(folder: Path) -> None:
    found = numbers("ddp", 2, ("planted",), folder)
    file = file_of("fsdp", 2, folder)
    code, text = replayed(found, "planted", 3, "--accel_config", file, "--sums=false", world=2)
    assert code == 0 and "step 3: nothing differs" in text, text


@pytest.mark.slow
def test_parity_compares_bits(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(
        "task: same_bits:Cross\nmax_steps: 3\nmicro_batch_size: 2\nglobal_batch_size: 24\n"
    )
    files = [ROOT / "accel_configs" / f"{name}.yaml" for name in ("ddp", "zero3")]
    paths = os.pathsep.join(
        map(str, (ROOT, ROOT / "tests" / "support", ROOT / "tests" / "workers"))
    )
    words = [sys.executable, "-m", "trainer", "parity", "--bits", *files, config, "--steps", "3"]
    done = completed(words, environment={"PYTHONPATH": paths})
    rows = [line for line in done.stdout.splitlines() if " true " in line or " false " in line]
    assert done.returncode == 0 and len(rows) == 6, done.stdout + done.stderr
    with_mode, without = rows[:3], rows[3:]
    assert with_mode[0].endswith("reference") and without[0].endswith("reference")
    assert all(row.endswith("no bit differs") for row in with_mode[1:]), done.stdout
    assert all("step 1: weights of" in row for row in without[1:]), done.stdout


@pytest.mark.parametrize("what", ["weight", pytest.param("exp_avg", marks=pytest.mark.slow)])
def test_a_replay_names_a_changed_tensor(what: str, folder: Path) -> None:
    """A bit of an element, and of a weight the last bit: rounding keeps it from gradients."""
    found = numbers("fsdp", 3, (f"changed {what}",), folder)
    code, text = replayed(found, f"changed {what}", 4)
    assert code == 1, text
    assert "step 4 DIFFERS: weights of layers.0.back.weight (1 of 37)" in text
