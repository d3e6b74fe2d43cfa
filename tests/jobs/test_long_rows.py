"""Rows whose documents attend without a mask, and rows that processes share, have one curve.

| promised | strategies and worlds | tests |
|---|---|---|
| Documents of a row that attend alone have the curve of a mask | one process | test_documents_alone_have_the_curve_of_a_mask |
| Processes that share rows have the curve of one process, with the whole set evaluated and all tokens counted | DDP, FSDP2, ZeRO-3 on 2; the others on 2, and on 4 in groups of 2 and of 4 (nightly) | test_shared_rows_have_the_curve_of_one_process |
| A model that needs whole rows is refused before the first step, on every process | DDP on 2 | test_a_model_that_needs_whole_rows_is_refused |
| A run goes on with rows that are shared by other processes | FSDP2 on 2, one process, DDP on 2 | test_a_run_goes_on_with_other_groups |
| Predictions have each row once | ZeRO-3 on 2 (nightly) | test_predictions_have_each_row_once |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import Job, json_in, json_lines, launch_file, slow_but, trained, worked
from tiny_language import CONFIGS
from tuning import HEADS, task_settings

STEPS = 10
CONFIG = {
    **{"micro_batch_size": 2, "global_batch_size": 8, "max_steps": STEPS, "log_every": 1},
    **{"save_every": 4, "keep_last": 4, "schedule": "constant"},
    **{"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01, "max_grad_norm": 0.5, "ema_decay": 0.9},
}
SCRATCH = {"model": None, "tokenizer": "four heads"}
WINDOW = {**CONFIGS["llama"], **HEADS, "model_type": "mistral", "sliding_window": 16}
ONE_KEY_HEAD = {**CONFIGS["qwen2"], **HEADS, "num_key_value_heads": 1}
MAMBA = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1}
# Settings of each case.
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "varlen": {"attention": "varlen"},
    "recomputed": {"activation_checkpointing": True},
    "fused": {"loss": "fused"},
    "adapter": {"adapter": {"r": 4}},
    "prompts": {"data": "prompts.jsonl", "packing": "none"},
    "window": {**SCRATCH, "config": WINDOW},
    "one key head": {**SCRATCH, "config": ONE_KEY_HEAD},
    "pairs": {"task": "DPO", "data": "pairs.jsonl", "loss": "fused"},
    # These are refused.
    "mamba": {**SCRATCH, "config": MAMBA},
    "heads": {**SCRATCH, "config": {**CONFIGS["llama"], "num_attention_heads": 1}},
    "sdpa": {**SCRATCH, "config": CONFIGS["llama"], "attention": "sdpa"},
}
REFUSED = {
    "mamba": "MambaForCausalLM cannot be computed in parts: documents in a row, or ",
    "heads": "LlamaForCausalLM cannot be computed in parts: attention varlen has no 1 heads for 2 ",
    "sdpa": "LlamaForCausalLM cannot be computed in parts: it has attention: sdpa",
}
Layout = tuple[str, int, int]  # strategy, processes, processes that share rows
SINGLE: Layout = ("single", 1, 1)
QUICK: list[tuple[Layout, str]] = [((name, 2, 2), "packed") for name in ("ddp", "fsdp", "zero3")]
NIGHTLY: list[tuple[Layout, str]] = [
    (("zero1", 2, 2), "packed"),
    (("zero2", 2, 2), "packed, adapter"),
    (("hsdp", 4, 2), "packed"),
    (("ddp", 4, 4), "packed"),
    (("zero3", 4, 4), "packed"),
    (("zero2", 4, 2), "packed"),
    (("fsdp", 2, 2), "recomputed, prompts"),
    (("zero3", 2, 2), "fused, pairs"),
    (("ddp", 4, 2), "prompts"),
    (("ddp", 2, 2), "window, one key head"),
    (("fsdp", 4, 2), "pairs"),
]


def config_of(case: str, layout: Layout, folder: Path) -> dict[str, Any]:
    settings = {"model": "four heads", "data": "texts.jsonl", "evaluation": 0.1, **CASES[case]}
    task = settings.pop("task", "CausalLM")
    if layout == SINGLE:
        settings.setdefault("attention", "sdpa")
    given = task_settings(folder, sequence_length=96, **settings)
    parts = {"context_parallel": layout[2]}
    return {"task": f"trainer.language:{task}", "task_settings": given, **CONFIG, **parts}


@cache
def rows(layout: Layout, cases: str, folder: Path) -> dict[str, Job]:
    """Train cases under a layout."""
    configs = {case: config_of(case, layout, folder) for case in cases.split(", ")}
    place = folder / "-".join(map(str, (*layout, cases)))
    return trained(layout[0], place, configs, world=layout[1])


def assert_same_curve(job: Job, alone: Job) -> None:
    assert len(job.losses) == STEPS and job.losses == pytest.approx(alone.losses, rel=1e-6)
    assert job.column("grad_norm") == pytest.approx(alone.column("grad_norm"), rel=1e-6)
    # At first the rewards of DPO are zero up to rounding.
    assert job.evaluation == pytest.approx(alone.evaluation, rel=1e-6, abs=1e-6)
    assert job.losses[-1] < job.losses[0], "it learns"


def test_documents_alone_have_the_curve_of_a_mask(folder: Path) -> None:
    jobs = rows(SINGLE, "packed, varlen", folder)
    log = (jobs["varlen"].output_dir / "log.txt").read_text()
    assert "attention: varlen, within documents, without a mask" in log
    assert_same_curve(jobs["varlen"], jobs["packed"])


@pytest.mark.parametrize(("layout", "cases"), slow_but(QUICK, [*QUICK, *NIGHTLY]), ids=str)
def test_shared_rows_have_the_curve_of_one_process(
    layout: Layout, cases: str, folder: Path
) -> None:
    alone = rows(SINGLE, "packed, varlen" if cases == "packed" else cases, folder)
    for case, job in rows(layout, cases, folder).items():
        _, world, parts = layout
        assert job.plan["context_parallel"] == parts
        assert job.plan["accumulation_steps"] == 4 * parts // world
        assert_same_curve(job, alone[case])
        if case == "packed":
            assert spent_tokens(job) == spent_tokens(alone[case]) > 0


def spent_tokens(job: Job) -> float:
    """Return the trained tokens of a run in its last checkpoint."""
    last = max((job.output_dir / "checkpoints").glob("*/state.json"))
    tokens: float = json_in(last)["spent"]["tokens"]
    return tokens


@pytest.mark.parametrize("cases", slow_but(["mamba"], ["mamba", "heads, sdpa"]))
def test_a_model_that_needs_whole_rows_is_refused(cases: str, folder: Path) -> None:
    for case, job in rows(("ddp", 2, 2), cases, folder).items():
        assert f"context_parallel: 2: {REFUSED[case]}" in job.err
        assert not (job.output_dir / "metrics.jsonl").exists()


def test_a_run_goes_on_with_other_groups(folder: Path) -> None:
    stages: list[tuple[Layout, int]] = [(("fsdp", 2, 2), 4), (SINGLE, 7), (("ddp", 2, 2), STEPS)]
    for layout, stop in stages:
        config = config_of("packed", ("", *layout[1:]), folder)
        more = {"resume": "auto", "stop_at": stop}
        [job] = trained(layout[0], folder / "on", {"packed": {**config, **more}}).values()
    assert_same_curve(job, rows(SINGLE, "packed, varlen", folder)["packed"])


@pytest.mark.slow
def test_predictions_have_each_row_once(folder: Path) -> None:
    done = rows(("zero3", 2, 2), "packed", folder)["packed"]
    found = []
    for how, world in (("single", 0), ("zero3", 2)):
        out = folder / f"{how}.jsonl"
        words = ["evaluate", done.output_dir, "--predictions", out]
        words += [launch_file(folder / f"{how}.yaml", how, max(world, 1))]
        worked(
            ["tests/workers/evaluating.py", *words, f"--context_parallel={max(world, 1)}"], world
        )
        found.append(json_lines(out))
    alone, shared = found
    assert len(alone) > 5 and [row["tokens"] for row in alone] == [row["tokens"] for row in shared]
    losses = pytest.approx([row["loss"] for row in alone], rel=1e-6)
    assert [row["loss"] for row in shared] == losses
