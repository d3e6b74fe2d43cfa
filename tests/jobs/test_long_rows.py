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
import yaml
from launchers import Job, command, json_in, json_lines, launch_file, options, run, worked
from preferences import save_preferences
from tiny_language import CONFIGS, paragraphs, save_model, save_rows, save_texts

STEPS = 10
CONFIG = {
    **{"micro_batch_size": 2, "global_batch_size": 8, "max_steps": STEPS, "log_every": 1},
    **{"save_every": 4, "keep_last": 4, "schedule": "constant"},
    **{"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01, "max_grad_norm": 0.5, "ema_decay": 0.9},
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOW = {**CONFIGS["llama"], **HEADS, "model_type": "mistral", "sliding_window": 16}
# Settings of each case. Those of a model from scratch have a configuration.
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "recomputed": {"activation_checkpointing": True},
    "fused": {"loss": "fused"},
    "adapter": {"adapter": {"r": 4}},
    # Long prompts: of many rows the first half has no target.
    "prompts": {"data": "prompts.jsonl", "packing": "none"},
    "window": {"model": None, "config": WINDOW, "tokenizer": "llama"},
    "one key head": {
        "model": None,
        "config": {**CONFIGS["qwen2"], **HEADS, "num_key_value_heads": 1},
        "tokenizer": "llama",
    },
    "pairs": {"data": "pairs.jsonl", "loss": "fused"},
}
Layout = tuple[str, int, int]  # strategy, processes, processes that share rows
SINGLE: Layout = ("single", 1, 1)
QUICK: list[tuple[str, Layout]] = [("packed", (name, 2, 2)) for name in ("ddp", "fsdp", "zero3")]
NIGHTLY: list[tuple[str, Layout]] = [
    ("packed", ("zero1", 2, 2)),
    ("packed", ("zero2", 2, 2)),
    ("packed", ("hsdp", 4, 2)),
    ("packed", ("ddp", 4, 4)),
    ("packed", ("zero3", 4, 4)),
    ("packed", ("zero2", 4, 2)),
    ("recomputed", ("fsdp", 2, 2)),
    ("fused", ("zero3", 2, 2)),
    ("adapter", ("zero2", 2, 2)),
    ("prompts", ("fsdp", 2, 2)),
    ("prompts", ("ddp", 4, 2)),
    ("window", ("ddp", 2, 2)),
    ("one key head", ("ddp", 2, 2)),
    ("pairs", ("zero3", 2, 2)),
    ("pairs", ("fsdp", 4, 2)),
]


@cache
def given(folder: Path) -> Path:
    """The folder of a model, of texts, of answers behind long prompts, and of pairs."""
    place = folder / "given"
    save_model(place / "llama", **HEADS)
    save_texts(place / "texts.jsonl")
    texts = paragraphs(80)
    answers = [
        {"prompt": texts[at][: 300 * (at % 4)], "completion": texts[at + 1][:40]}
        for at in range(0, 80, 2)
    ]
    save_rows(place / "prompts.jsonl", answers)
    save_preferences(place / "pairs.jsonl", 50)
    return place


def config_of(case: str, folder: Path, **changes: Any) -> Path:
    place = given(folder)
    settings = {
        "model": "llama", "data": "texts.jsonl", "evaluation": 0.1, "sequence_length": 96,
        **CASES[case], **changes,
    }  # fmt: skip
    for key in ("data", "model", "tokenizer"):
        if settings.get(key):
            settings[key] = str(place / settings[key])
    settings["cache_dir"] = str(folder / "cache")
    name = "DPO" if case == "pairs" else "CausalLM"
    path = folder / f"{case}{len(changes)}.yaml"
    path.write_text(
        yaml.safe_dump({"task": f"trainer.language:{name}", "task_settings": settings, **CONFIG})
    )
    return path


def words(layout: Layout, folder: Path) -> list[str]:
    strategy, world, parts = layout
    if strategy == "single":
        return command("ranks", "single", 0)
    how = strategy
    if strategy != "hsdp":
        how = str(launch_file(folder / f"{strategy}{world}.yaml", strategy, world))
    return [*command("ranks", how, world), *options({"context_parallel": parts})]


@cache
def trained(case: str, layout: Layout, folder: Path) -> Job:
    changes = {"attention": "sdpa"} if layout == SINGLE else {}
    config = config_of(case, folder, **changes)
    output = folder / "-".join(map(str, (case, *layout)))
    return run([*words(layout, folder), "--config", str(config)], output).ok()


def column(job: Job, name: str) -> list[float]:
    return [row[name] for row in job.rows if name in row]


def assert_same_curve(job: Job, alone: Job) -> None:
    assert len(job.losses) == STEPS and job.losses == pytest.approx(alone.losses, rel=1e-6)
    assert column(job, "grad_norm") == pytest.approx(column(alone, "grad_norm"), rel=1e-6)
    # At first the rewards of DPO are zero up to rounding.
    assert job.evaluation == pytest.approx(alone.evaluation, rel=1e-6, abs=1e-6)
    assert job.losses[-1] < job.losses[0], "it learns"


def test_documents_alone_have_the_curve_of_a_mask(folder: Path) -> None:
    config = config_of("packed", folder, attention="varlen")
    job = run([*words(SINGLE, folder), "--config", str(config)], folder / "varlen").ok()
    assert "attention: varlen, within documents, without a mask" in job.out
    assert_same_curve(job, trained("packed", SINGLE, folder))


@pytest.mark.parametrize(
    ("case", "layout"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in NIGHTLY)],
    ids=str,
)
def test_shared_rows_have_the_curve_of_one_process(case: str, layout: Layout, folder: Path) -> None:
    job, alone = trained(case, layout, folder), trained(case, SINGLE, folder)
    strategy, world, parts = layout
    plan = job.plan
    assert plan["strategy"] == strategy.replace("hsdp", "fsdp")
    assert (plan["world_size"], plan["context_parallel"]) == (world, parts)
    assert plan["accumulation_steps"] == 4 * parts // world
    assert_same_curve(job, alone)
    if case == "packed":
        assert spent_tokens(job) == spent_tokens(alone) > 0


def spent_tokens(job: Job) -> float:
    """Return the trained tokens of a run in its last checkpoint."""
    last = max((job.output_dir / "checkpoints").glob("*/state.json"))
    tokens: float = json_in(last)["spent"]["tokens"]
    return tokens


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (
            {"config": {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1}},
            "MambaForCausalLM cannot be computed in parts: documents in a row have other outputs ",
        ),
        pytest.param(
            {"config": {**CONFIGS["llama"], "num_attention_heads": 1}},
            "LlamaForCausalLM cannot be computed in parts: attention varlen has no 1 heads for 2 ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"config": CONFIGS["llama"], "attention": "sdpa"},
            "LlamaForCausalLM cannot be computed in parts: it has attention: sdpa",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["mamba", "heads", "sdpa"],
)
def test_a_model_that_needs_whole_rows_is_refused(
    settings: dict[str, Any], rule: str, folder: Path
) -> None:
    config = config_of("packed", folder, model=None, tokenizer="llama", **settings)
    job = run([*words(("ddp", 2, 2), folder), "--config", str(config)], folder / rule[:9])
    assert job.code != 0 and not (job.output_dir / "metrics.jsonl").exists()
    assert f"context_parallel: 2: {rule}" in job.err


def test_a_run_goes_on_with_other_groups(folder: Path) -> None:
    alone = trained("packed", SINGLE, folder)
    config = ["--config", str(config_of("packed", folder))]
    stages: list[tuple[Layout, int]] = [(("fsdp", 2, 2), 4), (SINGLE, 7), (("ddp", 2, 2), STEPS)]
    for layout, stop in stages:
        resumed = ["--resume", "auto", "--stop_at", str(stop)]
        job = run([*words(layout, folder), *config, *resumed], folder / "resumed").ok()
    assert_same_curve(job, alone)


@pytest.mark.slow
def test_predictions_have_each_row_once(folder: Path) -> None:
    layout = ("zero3", 2, 2)
    run_folder = trained("packed", layout, folder).output_dir
    found = []
    for each in (SINGLE, layout):
        out = folder / f"{each[0]}.jsonl"
        evaluated = ["evaluate", str(run_folder), "--predictions", str(out)]
        job = [
            str(word).replace("examples/train.py", "tests/workers/evaluating.py")
            for word in words(each, folder)
        ]
        at = job.index("tests/workers/evaluating.py")
        _, world, *rest = [*job[: at + 1], *evaluated, *job[at + 1 :]]
        worked(rest, int(world))
        found.append(json_lines(out))
    alone, shared = found
    assert len(alone) > 5 and [row["tokens"] for row in alone] == [row["tokens"] for row in shared]
    assert [row["loss"] for row in shared] == pytest.approx(
        [row["loss"] for row in alone], rel=1e-6
    )
