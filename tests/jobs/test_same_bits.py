"""``same_bits: true``: no bit of a run depends on its layout.

| promised | strategies and worlds | tests |
|---|---|---|
| Losses, norms, evaluations and exported weights have the bits of one process, in float32 and bf16, over the end of an epoch, with cross attention, tied weights and dropout; so have LoRA, DPO, a T5, the digits CNN, recomputed and frozen layers, and steps of 1, 2, 3 or 6 micro-batches of each rank | DDP on 2, FSDP2 on 3, ZeRO-2 on 2, ZeRO-3 on 2 and 3; HSDP, ZeRO-1 and all on 1 to 4 (nightly) | test_no_bit_depends_on_the_layout |
| A run that goes on under another layout has the bits of a run that nobody stopped | ZeRO-3 on 3, then DDP on 2 | test_no_bit_depends_on_a_resume |
| A replay on one process finds nothing, and counts sums, or names step, tensor, rank and micro-batch of a wrong bit | DDP on 2; FSDP2 on 3 (nightly) | test_a_replay_names_a_wrong_bit |
| A replay under a launch file, and parity --bits, compare bits too, and name an error under a strategy alone | FSDP2 on 2; DDP, ZeRO-3 on 2 (nightly) | test_a_replay_runs_on_another_layout, test_parity_compares_bits |
| A replay that fails leaves nothing behind | one process (nightly) | test_a_replay_that_fails_leaves_no_folder |
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
from preferences import save_preferences
from tiny_language import save_model, save_texts

CASES = ("cross", "cross bf16", "tied", "tied bf16")
MORE = ("sgd", "average", "muon")
LANGUAGE = ("lora", "lora bf16", "dpo", "dpo bf16", "dpo lora", "dpo lora bf16")
MODELS = ("t5", "t5 bf16", "digits", "digits bf16", "recomputed", "recomputed bf16")
QUICK = [("ddp", 2), ("fsdp", 3), ("zero2", 2), ("zero3", 3)]
EVERY = [
    (name, world) for name in STRATEGIES for world in (1, 2, 3, 4) if (name, world) != ("ddp", 1)
]
NIGHTLY = [layout for layout in (*EVERY, ("hsdp", 4)) if layout not in QUICK]
SOME = ("lora", "t5", "by 2", "recomputed bf16")
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support", ROOT / "tests" / "workers")))
NUMBERS = ("losses", "norms", "evaluations", "digests", "weights")


def file_of(strategy: str, world: int, folder: Path) -> Path:
    """Return the launch file of a strategy. Under HSDP two groups hold copies of the model."""
    if strategy == "hsdp":
        return ROOT / "accel_configs" / "hsdp.yaml"
    return launch_file(folder / "accel.yaml", strategy, world)


def accumulated(world: int) -> tuple[str, ...]:
    """Return the cases in which each rank has 1, 2, 3 and 6 micro-batches in a step."""
    return tuple(f"by {each * world}" for each in (1, 2, 3, 6))


@cache
def given(folder: Path) -> None:
    """Make the model and the rows of the language tasks."""
    place = folder / "given"
    save_model(place / "llama")
    save_texts(place / "texts.jsonl", 60)
    save_preferences(place / "pairs.jsonl", 40)


@cache
def numbers(
    strategy: str, world: int, cases: tuple[str, ...], folder: Path, *settings: str
) -> dict[str, Any]:
    place = folder / f"{strategy}-{world}-{len(cases)} {cases[-1]}-{len(settings)}"
    place.mkdir()
    if {*cases} & {*LANGUAGE}:
        given(folder)
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
        ("zero3", 2, SOME),
        *(
            pytest.param(*layout, cases, marks=pytest.mark.slow)
            for layout in (*EVERY, ("hsdp", 4))
            for cases in (LANGUAGE, MODELS, accumulated(layout[1]))
        ),
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
    named = "micro_batches 3 of rank 1 (1 of 12); gradients layers.1.wide.weight (1 of 37)"
    assert f"steps 3 to 4: step 4 differs: {named}" in text
    assert "Traceback" not in text

    code, text = replayed(found, "planted", 2, "--sums")
    assert code == 0 and "steps 1 to 2: nothing differs" in text, text
    # Of 12 micro-batches 11 are added in each step, with 9,776 weights.
    assert f"of {2 * 11 * 9776:,} additions of gradients float64 rounded 0" in text


@pytest.mark.slow
def test_a_replay_runs_on_another_layout(folder: Path) -> None:
    found = numbers("ddp", 2, ("planted",), folder)
    file = file_of("fsdp", 2, folder)
    code, text = replayed(found, "planted", 3, "--accel_config", file, "--sums=false", world=2)
    assert code == 0 and "steps 3 to 3: nothing differs" in text, text


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Cross", "WrongUnderDDP"])
def test_parity_compares_bits(task: str, tmp_path: Path) -> None:
    """An error that somebody has written on purpose shows under DDP alone."""
    config = tmp_path / "train.yaml"
    config.write_text(
        f"task: same_bits:{task}\nmax_steps: 3\nmicro_batch_size: 2\nglobal_batch_size: 24\n"
    )
    files = [ROOT / "accel_configs" / f"{name}.yaml" for name in ("zero3", "ddp")]
    words = ["parity", "--bits", *files, config, "--steps", "3"]
    done = completed([sys.executable, "-m", "trainer", *words], environment={"PYTHONPATH": PATHS})
    rows = [line for line in done.stdout.splitlines() if " true " in line or " false " in line]
    assert len(rows) == 6, done.stdout + done.stderr
    assert rows[0].endswith("reference") and rows[3].endswith("reference")
    assert rows[1].endswith("no bit differs"), done.stdout
    named = (
        "step 2 differs: micro_batches 1 of rank 0, 1 of rank 1, 2 of rank 0 (and 9 more) (12 of"
    )
    assert named in rows[2] if task == "WrongUnderDDP" else rows[2].endswith("no bit differs")
    assert done.returncode == (task == "WrongUnderDDP")
    assert all("step 1 differs: weights " in row for row in rows[4:]), done.stdout


@pytest.mark.slow
def test_a_replay_that_fails_leaves_no_folder(tmp_path: Path, folder: Path) -> None:
    found = numbers("single", 1, ("planted",), folder)
    run, wrong = found["folder"] / "planted", "--task_settings.name=head.weights"
    words = [sys.executable, "-m", "trainer", "replay", run, "--step", "4", wrong]
    done = completed(words, environment={"PYTHONPATH": PATHS, "TMPDIR": str(tmp_path)})
    assert "has no attribute `weights`" in done.stderr and done.returncode == 1
    assert [*tmp_path.glob("replay-*")] == []


@pytest.mark.parametrize("what", ["weight", pytest.param("exp_avg", marks=pytest.mark.slow)])
def test_a_replay_names_a_changed_tensor(what: str, folder: Path) -> None:
    """A bit of an element, and of a weight the last bit: rounding keeps it from gradients."""
    found = numbers("fsdp", 3, (f"changed {what}",), folder)
    code, text = replayed(found, f"changed {what}", 4)
    assert code == 1, text
    assert "step 4 differs: weights layers.0.back.weight (1 of 37)" in text
