"""Groups of FSDP2 (HSDP) and tensor parallelism have the same curve, and share their checkpoints.

| promised | strategies and worlds | tests |
|---|---|---|
| Groups have the curve of one process, and resume from anywhere | HSDP on 4, FSDP2 on 2, one process | test_two_groups_of_two_have_the_curve_of_one_process_and_share_its_checkpoints |
| A pair that divides each layer has the curve of one process | tensor parallelism on 2 | test_a_pair_that_divides_each_layer_has_the_curve_of_one_process |
| Pairs within FSDP2 have it too, and resume bit by bit | tensor parallelism with FSDP2 on 4 (nightly) | test_pairs_within_fsdp_have_the_curve_of_one_process_and_resume_exactly |
| Their checkpoints load on any layout, and those of any layout here | one process, FSDP2, ZeRO-3, a pair (nightly) | test_checkpoints_go_from_pairs_to_any_layout_and_back |
| transformers loads what they export | tensor parallelism on 4 (nightly) | test_an_exported_folder_is_a_model_and_pairs_start_from_it_on_the_meta_device |
| accelerate launch starts the committed file | tensor parallelism on 4 (nightly) | test_the_committed_file_runs_by_its_launcher |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from launchers import ROOT, Job, command, ranks, run
from safetensors.torch import load_file
from small_examples import digits
from transformers import AutoModelForCausalLM

# Groups of FSDP2


DIGITS = digits(steps=4, warmup_steps=2)
BATCH = ["--global_batch_size", "64", "--micro_batch_size", "8", "--save_every", "2"]
PROCESSES = {"single": 0, "fsdp": 2, "hsdp": 4}


def train_digits(folder: Path, how: str, *more: str, launcher: str = "ranks") -> Job:
    words = command(launcher, how, world=PROCESSES[how])
    if launcher == "accelerate":
        words[
            words.index("--num_processes") : words.index("--num_processes") + 2
        ] = []  # the file says it
    return run([*words, *DIGITS, *BATCH, *more], folder).ok()


def assert_equal(found: Sequence[float], wanted: Sequence[float]) -> None:
    assert found == pytest.approx(wanted, rel=1e-6) and len(found) == len(wanted)


@pytest.mark.parametrize("launcher", ["ranks", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_two_groups_of_two_have_the_curve_of_one_process_and_share_its_checkpoints(
    launcher: str, tmp_path: Path
) -> None:
    alone = train_digits(tmp_path / "single", "single")
    groups = train_digits(tmp_path / "hsdp", "hsdp", launcher=launcher)
    assert groups.plan["fsdp"]["dp_replicate_size"] == 2 and groups.plan["world_size"] == 4
    assert groups.plan["distributed_type"] == "FSDP"
    assert_equal(groups.losses, alone.losses)
    for source, how in (("hsdp", "fsdp"), ("single", "hsdp")):
        checkpoint = tmp_path / source / "checkpoints" / "step-00000002"
        resumed = train_digits(tmp_path / f"{source}_{how}", how, "--resume", str(checkpoint))
        assert_equal(resumed.losses, alone.losses[2:])
    assert_written_once(groups, alone)


def assert_written_once(groups: Job, alone: Job) -> None:
    """The ranks of all groups write equal parts, and together no more than one process, but for
    headers.
    """
    found = {}
    for job in (groups, alone):
        files = sorted(job.output_dir.glob("checkpoints/step-00000002/rank-*.safetensors"))
        found[len(files)] = [path.stat().st_size for path in files]
    assert found.keys() == {1, 4} and sum(found[4]) < found[1][0] + 4 * 40_000
    assert max(found[4]) < 2 * min(found[4])


# Tensor parallelism


WORLD = {"single": 0, "fsdp": 2, "zero3": 2, "tp": 4, "pair": 2}


def train(how: str, folder: Path, **runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Train under a committed file, or in one tensor-parallel pair; the answers, in order."""
    file: str | None = f"accel_configs/{how}.yaml"
    if how == "pair":
        text = yaml.safe_load((ROOT / "accel_configs" / "tp.yaml").read_text())
        text["num_processes"], text["parallelism_config"] = 2, {"parallelism_config_tp_size": 2}
        file = str(folder / "pair.yaml")
        Path(file).write_text(yaml.safe_dump(text))
    told = {"folder": str(folder), "file": None if how == "single" else file, "runs": runs}
    done = ranks(["tests/workers/tensor_parallel.py", json.dumps(told)], WORLD[how], timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{name}.json").read_text()) for name in runs]


def assert_same(found: dict[str, Any], wanted: dict[str, Any], *, after: int = 0) -> None:
    for key in ("loss", "grad_norm", "double"):
        assert len(found[key]) == len(wanted[key]) - after
        assert found[key] == pytest.approx(wanted[key][after:], rel=1e-5), key
    assert found["evaluation"] == pytest.approx(wanted["evaluation"], rel=1e-5)


def step(folder: Path, name: str, number: int) -> str:
    return str(folder / name / "checkpoints" / f"step-{number:08}")


def test_a_pair_that_divides_each_layer_has_the_curve_of_one_process(tmp_path: Path) -> None:
    short = {"max_steps": 3, "keep_last": 0}
    kinds = {kind: {**short, "model": kind} for kind in ("masked_norm", "dropout", "masked_layer")}
    alone, norm = train("single", tmp_path, alone=short, masked=kinds["masked_norm"])
    both, masked, dropout, divided = train("pair", tmp_path, both=short, **kinds)
    assert_same(both, alone)
    assert_same(masked, norm)
    assert masked["loss"] != both["loss"], "the hook on a weight that is not divided was called"
    hook = "model.layers.0.mlp.up_proj.weight has a hook on its gradient, of which tensor parallelism has parts only"
    assert divided == {"error": hook}
    assert (
        both["model_class"] == "FSDPLlamaForCausalLM" and both["elements"] < 0.6 * alone["elements"]
    )
    for found in (both, dropout):
        assert found["norms"][0] == found["norms"][1] and found["norms"][0], (
            "what both hold is the same to the bit"
        )
        assert found["random"][0] == found["random"][1]
    assert dropout["loss"] != both["loss"]


STEPS = 20


@cache
def trained(how: str, folder: Path) -> list[dict[str, Any]]:
    """Twenty steps, a tied model, and one in two halves, each under one strategy."""
    whole = {"max_steps": STEPS, "save_every": 10}
    tied = {"model": "tied", "max_steps": 4, "micro_batch_size": 2, "ema_decay": 0.9}
    again = {"max_steps": STEPS, "resume": step(folder, f"{how}-whole", 10)}
    return train(how, folder, **{f"{how}-whole": whole, f"{how}-tied": tied, f"{how}-again": again})


@pytest.mark.slow
def test_pairs_within_fsdp_have_the_curve_of_one_process_and_resume_exactly(folder: Path) -> None:
    alone, pairs = trained("single", folder), trained("tp", folder)
    for found, wanted in zip(pairs, alone, strict=True):
        assert_same(found, wanted)
    assert pairs[0]["loss"][-1] < pairs[0]["loss"][0] - 0.2
    assert (
        pairs[2]["loss"] == pairs[0]["loss"][10:]
        and pairs[2]["grad_norm"] == pairs[0]["grad_norm"][10:]
    )
    assert any(
        "lm_head (shares its weight with another layer)" in notice for notice in pairs[1]["notices"]
    )
    random = pairs[0]["random"]
    assert random[0] == random[1] != random[2] == random[3], (
        "two ranks in a row share their batches"
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["single", "fsdp", "zero3", "pair"])
def test_checkpoints_go_from_pairs_to_any_layout_and_back(how: str, folder: Path) -> None:
    [whole, *_] = trained("single", folder)
    trained("tp", folder)
    rest = {"max_steps": STEPS, "save_every": 2}
    [there] = train(
        how,
        folder,
        **{f"to-{how}": {**rest, "max_steps": 14, "resume": step(folder, "tp-whole", 10)}},
    )
    cut = {key: whole[key][:14] for key in ("loss", "grad_norm", "double")}
    assert_same(there, {**cut, "evaluation": there["evaluation"]}, after=10)
    [back] = train(
        "tp", folder, **{f"from-{how}": {**rest, "resume": step(folder, f"to-{how}", 14)}}
    )
    assert_same(back, whole, after=14)


@pytest.mark.slow
def test_an_exported_folder_is_a_model_and_pairs_start_from_it_on_the_meta_device(
    folder: Path,
) -> None:
    trained("single", folder)
    trained("tp", folder)
    for name in ("whole", "tied"):
        model = AutoModelForCausalLM.from_pretrained(folder / f"tp-{name}" / "model").state_dict()
        theirs = AutoModelForCausalLM.from_pretrained(
            folder / f"single-{name}" / "model"
        ).state_dict()
        for key, tensor in theirs.items():
            torch.testing.assert_close(model[key], tensor, rtol=1e-4, atol=1e-5)
        assert len(load_file(folder / f"tp-{name}" / "model" / "model.safetensors")) > 10
    start = {"model": str(folder / "tp-whole" / "model"), "max_steps": 3, "keep_last": 0}
    [alone], [pairs] = (train(how, folder, **{f"{how}-meta": start}) for how in ("single", "tp"))
    assert_same(pairs, alone)


@pytest.mark.slow
def test_the_committed_file_runs_by_its_launcher(tmp_path: Path) -> None:
    words = command("accelerate", "tp", world=0)
    settings = {
        "max_bytes": 100_000,
        "vocab_size": 300,
        "sequence_length": 16,
        "cache_dir": str(tmp_path / "cache"),
    }
    words += [
        "--config",
        "examples/configs/llama_stdlib.yaml",
        "--max_steps",
        "2",
        "--warmup_steps",
        "1",
    ]
    words += [
        word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))
    ]
    job = run(words, tmp_path / "run").ok()
    assert (
        job.plan["world_size"],
        job.plan["data_parallel_size"],
        job.plan["fsdp"]["tp_size"],
    ) == (4, 2, 2)
    assert "Warning" not in job.err and "redistribut" not in job.err
