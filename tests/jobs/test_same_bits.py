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
from launchers import ROOT, STRATEGIES, Job, completed, json_lines, launch_file, ranks, trained
from safetensors.torch import load_file
from tuning import task_settings

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
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support", ROOT / "tests/workers")))
# 12 micro-batches a step, which 1, 2, 3 and 4 ranks share. The second step of an epoch has 23
# samples: 11 micro-batches and a half.
CONFIG = {
    **{"task": "same_bits:Cross", "micro_batch_size": 2, "global_batch_size": 24, "lr": 1e-2},
    **{"max_steps": 3, "log_every": 1, "eval_every": 2, "max_grad_norm": 0.5, "keep_last": 0},
    **{"same_bits": True, "sanity_evaluation": False},
}
FLIP = {"name": "layers.0.back.weight", "rank": 1, "step": 3}
SAVING = {"max_steps": 5, "save_every": 2, "keep_last": 9}
SETTINGS: dict[str, dict[str, Any]] = {
    "cross": {},
    "tied": {"task": "same_bits:Tied"},
    "recomputed": {"task": "same_bits:Recomputed"},
    "t5": {"task": "same_bits:Translator"},
    "digits": {"task": "digits_cnn:DigitsCNN", "task_settings": {"width": 8}},
    "saved": SAVING,
    "planted": {"task": "same_bits:Planted", **SAVING},
    "off": {"same_bits": False},
    "sgd": {"optimizer": "sgd", "lr": 0.05},
    "muon": {"optimizer": "muon"},
    "average": {"ema_decay": 0.9, "optimizer": "adam"},
    "changed weight": {
        **SAVING,
        "callbacks": [{"same_bits:Flip": {**FLIP, "what": "weight", "bit": 0}}],
    },
    "changed exp_avg": {
        **SAVING,
        "callbacks": [{"same_bits:Flip": {**FLIP, "what": "exp_avg", "bit": 12}}],
    },
}
TUNED: dict[str, dict[str, Any]] = {
    "lora": {"data": "texts.jsonl", "adapter": {"r": 4, "dropout": 0.1}},
    "dpo": {"data": "pairs.jsonl", "sft_weight": 0.2},
    "dpo lora": {"data": "pairs.jsonl", "sft_weight": 0.2, "adapter": {"r": 4}},
}


def config_of(case: str, folder: Path) -> dict[str, Any]:
    name = case.removesuffix(" bf16")
    config = {**CONFIG, "mixed_precision": "bf16" if name != case else "no"}
    if name.startswith("by "):
        return {**config, "global_batch_size": 2 * int(name[3:])}
    if name in SETTINGS:
        return {**config, **SETTINGS[name]}
    given = {"model": "llama", "evaluation": 0.2, "sequence_length": 64, **TUNED[name]}
    config["task"] = f"trainer.language:{'DPO' if 'dpo' in name else 'CausalLM'}"
    return {**config, "task_settings": task_settings(folder, **given)}


def accumulated(world: int) -> tuple[str, ...]:
    """Return the cases in which each rank has 1, 2, 3 and 6 micro-batches in a step."""
    return tuple(f"by {each * world}" for each in (1, 2, 3, 6))


@cache
def jobs(
    strategy: str, world: int, cases: tuple[str, ...], folder: Path, *words: str
) -> dict[str, Job]:
    place = folder / f"{strategy}-{world}-{len(cases)} {cases[-1]}-{len(words)}"
    configs = {case: config_of(case, folder) for case in cases}
    return trained(strategy, place, configs, *words, world=world)


def numbers(job: Job) -> dict[str, dict[Any, Any]]:
    """Return losses, norms, evaluations and digests by step, and the bytes of exported weights."""
    found: dict[str, dict[Any, Any]] = {
        key: {row["step"]: row[key] for row in job.rows if key in row}
        for key in ("loss", "grad_norm", "eval/loss")
    }
    digests = json_lines(path) if (path := job.output_dir / "digests.jsonl").exists() else []
    found["digests"] = {
        row["step"]: row["micro_batches"] + row["gradients"] + row["weights"]
        for row in digests
        if "step" in row
    }
    found["weights"] = {
        name: tensor.contiguous().numpy().tobytes()
        for file in sorted((job.output_dir / "model").glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    return found


def differing(one: Job, other: Job) -> dict[str, list[str]]:
    """Return the steps and tensors whose bits differ, by kind of number."""
    found, expected = numbers(one), numbers(other)
    assert all(found[kind].keys() == expected[kind].keys() for kind in expected)
    return {
        kind: names
        for kind, values in expected.items()
        if (names := [key for key, value in values.items() if found[kind][key] != value])
    }


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
    alone, found = jobs("single", 1, cases, folder), jobs(strategy, world, cases, folder)
    for case in cases:
        assert len(alone[case].losses) == 3 and len(alone[case].column("eval/loss")) == 2
        assert differing(found[case], alone[case]) == {}, case


def test_without_the_mode_bits_differ(folder: Path) -> None:
    alone, found = (
        jobs(*layout, ("off",), folder)["off"] for layout in (("single", 1), ("ddp", 2))
    )
    assert len(differing(found, alone)["weights"]) > 10


def test_no_bit_depends_on_a_resume(folder: Path) -> None:
    alone = numbers(jobs("single", 1, ("saved",), folder)["saved"])
    first = jobs("zero3", 3, ("saved",), folder, "--stop_at=2")["saved"]
    resume = f"--resume={first.output_dir / 'checkpoints' / 'step-00000002'}"
    begun = numbers(first)
    ended = numbers(jobs("ddp", 2, ("saved",), folder, resume)["saved"])
    assert (list(begun["loss"]), list(ended["loss"])) == ([1, 2], [3, 4, 5])
    assert ended.pop("weights") == alone["weights"]
    for kind, values in ended.items():
        joined = begun[kind] | values
        assert {**alone[kind], **joined} == alone[kind] and 5 in joined


# -- replays --------------------------------------------------------------------------------------


def replayed(job: Job, step: int, *more: object, world: int = 0) -> tuple[int, str]:
    """Replay a run, by default on one process, and return the exit code and the text."""
    words = ["tests/workers/evaluating.py", "replay", job.output_dir, "--step", step]
    done = ranks([*words, *more], world)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("strategy", "world"), [("ddp", 2), pytest.param("fsdp", 3, marks=pytest.mark.slow)]
)
def test_a_replay_names_a_wrong_bit(strategy: str, world: int, folder: Path) -> None:
    """The bit is so small that no loss and no norm shows it."""
    found = jobs(strategy, world, ("planted",), folder)["planted"]
    code, text = replayed(found, 4)
    assert code == 1, text
    named = "micro_batches 3 of rank 1 (1 of 12); gradients layers.1.wide.weight (1 of 37)"
    assert f"steps 3 to 4: step 4 differs: {named}" in text
    assert "Traceback" not in text

    code, text = replayed(found, 2, "--sums")
    assert code == 0 and "steps 1 to 2: nothing differs" in text, text
    # Of 12 micro-batches 11 are added in each step, with 9,776 weights.
    assert f"of {2 * 11 * 9776:,} additions of gradients float64 rounded 0" in text


@pytest.mark.slow
def test_a_replay_runs_on_another_layout(folder: Path) -> None:
    found = jobs("ddp", 2, ("planted",), folder)["planted"]
    file = launch_file(folder / "fsdp.yaml", "fsdp")
    code, text = replayed(found, 3, "--accel_config", file, "--sums=false", world=2)
    assert code == 0 and "steps 3 to 3: nothing differs" in text, text


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Cross", "WrongUnderDDP"])
def test_parity_compares_bits(task: str, tmp_path: Path) -> None:
    """An error that somebody has written on purpose shows under DDP alone."""
    config = tmp_path / "train.yaml"
    config.write_text(
        f"task: same_bits:{task}\nmax_steps: 3\nmicro_batch_size: 2\nglobal_batch_size: 24\n"
    )
    files = [ROOT / f"accel_configs/{name}.yaml" for name in ("zero3", "ddp")]
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
    found = jobs("single", 1, ("planted",), folder)["planted"]
    words = [sys.executable, "-m", "trainer", "replay", found.output_dir, "--step", "4"]
    words += ["--task_settings.name=head.weights"]
    done = completed(words, environment={"PYTHONPATH": PATHS, "TMPDIR": str(tmp_path)})
    assert "has no attribute `weights`" in done.stderr and done.returncode == 1
    assert [*tmp_path.glob("replay-*")] == []


@pytest.mark.parametrize("what", ["weight", pytest.param("exp_avg", marks=pytest.mark.slow)])
def test_a_replay_names_a_changed_tensor(what: str, folder: Path) -> None:
    """A bit of an element, and of a weight the last bit: rounding keeps it from gradients."""
    case = f"changed {what}"
    code, text = replayed(jobs("fsdp", 3, (case,), folder)[case], 4)
    assert code == 1, text
    assert "step 4 differs: weights layers.0.back.weight (1 of 37)" in text
