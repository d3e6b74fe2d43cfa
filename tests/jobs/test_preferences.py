"""Preference training by a YAML alone has one curve, whatever keeps the reference, and resumes anywhere.

| promised | strategies and worlds | tests |
|---|---|---|
| DPO and reward models have the curve of one process over twenty steps, and its metrics, with uneven lengths and accumulation | reward models under DDP on 3; all on 2 and 3, HSDP on 4 (nightly) | test_every_layout_has_the_curve_of_one_process |
| A run goes on under another strategy in the middle of an epoch, twice | FSDP2 on 2, ZeRO-3 on 3, DDP on 2 | test_a_run_goes_on_under_other_strategies |
| Log-probabilities that were computed once are in the checkpoint of a run that resumes | FSDP2, ZeRO-3 on 2 | test_log_probabilities_are_computed_once |
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import STRATEGIES, Job, command, launch_file, run
from preferences import save_preferences
from tiny_language import change_tensors, save_model

STEPS = 20
CONFIG = {
    "micro_batch_size": 2,
    "global_batch_size": 12,
    "max_steps": STEPS,
    "save_every": 5,
    "keep_last": 4,
    "log_every": 1,
    "lr": 3e-3,
    "eps": 1e-4,
    "weight_decay": 0.01,
    "max_grad_norm": 0,
    "schedule": "constant",
}
DPO, REWARD = "trainer.language:DPO", "trainer.language:RewardModel"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen": (DPO, {"loss": "fused"}),
    "once": (DPO, {"reference": "computed_once", "objective": "ipo", "beta": 0.3}),
    "adapter": (DPO, {"adapter": {"r": 4}, "label_smoothing": 0.1, "sft_weight": 0.2}),
    "other": (DPO, {"adapter": {"r": 4}, "reference_model": "other", "objective": "robust"}),
    "reward": (REWARD, {"sequence_length": 128}),
}
Layout = tuple[str, int]
SINGLE: Layout = ("single", 1)
ALL: list[Layout] = [*((name, world) for name in STRATEGIES for world in (2, 3)), ("hsdp", 4)]
# Two tests below go on under other strategies, from which DPO has its quick cases.
QUICK = [("reward", ("ddp", 3))]


@cache
def given(folder: Path) -> Path:
    """The folder of two models and of pairs of uneven lengths, with margins."""
    place = folder / "given"
    save_model(place / "llama")
    change_tensors(save_model(place / "other"), lambda tensors: _nudge(tensors))
    save_preferences(place / "pairs.jsonl", 50)
    return place


def _nudge(tensors: dict[str, Any]) -> None:
    for tensor in tensors.values():
        tensor *= 1.05


def config_of(case: str, folder: Path, cache: Path) -> Path:
    task, settings = CASES[case]
    place = given(folder)
    settings = {
        "model": str(place / "llama"),
        "data": str(place / "pairs.jsonl"),
        "evaluation": 0.2,
        "sequence_length": 96,
        "cache_dir": str(cache),
        **settings,
    }
    if "reference_model" in settings:
        settings["reference_model"] = str(place / settings["reference_model"])
    path = cache.with_suffix(".yaml")
    config = {"task": task, "task_settings": settings, **CONFIG}
    if task == REWARD:
        config["lr"] = 1e-3  # the new layer learns fast, and rounding grows with the rate
    path.write_text(yaml.safe_dump(config))
    return path


def words_of(layout: Layout, folder: Path) -> list[str]:
    strategy, world = layout
    path = folder / f"{strategy}{world}.yaml"
    if strategy == "hsdp":
        return [*command("ranks", "hsdp", 4), "--micro_batch_size", "1"]
    return command("ranks", str(launch_file(path, strategy, world)), world if world > 1 else 0)


@cache
def trained(case: str, layout: Layout, folder: Path, *more: str) -> Job:
    out = folder / "-".join([case, layout[0], str(layout[1]), *more]).replace("/", "_")
    config = config_of(case, folder, folder / f"cache-{out.name}")
    return run([*words_of(layout, folder), "--config", str(config), *more], out).ok()


def column(job: Job, name: str) -> list[float]:
    return [row[name] for row in job.rows if name in row]


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in product(CASES, ALL)
    ],
    ids=str,
)
def test_every_layout_has_the_curve_of_one_process(case: str, layout: Layout, folder: Path) -> None:
    alone, done = trained(case, SINGLE, folder), trained(case, layout, folder)
    assert done.plan["world_size"] == layout[1]
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=2e-6)
    assert column(done, "grad_norm") == pytest.approx(column(alone, "grad_norm"), rel=1e-5)
    for name in ("chosen_reward", "rejected_reward", "margin"):
        assert column(done, name) == pytest.approx(column(alone, name), rel=1e-5, abs=2e-6)
    # At first the rewards of DPO are zero up to rounding.
    assert column(done, "accuracy")[1:] == column(alone, "accuracy")[1:]
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5, abs=2e-6)
    assert alone.losses[-1] < alone.losses[0] - 0.05, "it learns"


def test_a_run_goes_on_under_other_strategies(folder: Path) -> None:
    """FSDP2 on two, ZeRO-3 on three, DDP on two: each takes over in the middle of an epoch."""
    alone = trained("frozen", SINGLE, folder)
    out = folder / "resumed"
    config = ["--config", str(config_of("frozen", folder, folder / "cache-resumed"))]
    stages = [(("fsdp", 2), "5"), (("zero3", 3), "10"), (("ddp", 2), str(STEPS))]
    for layout, stop in stages:
        words = [*words_of(layout, folder), *config, "--resume", "auto", "--stop_at", stop]
        done = run(words, out).ok()
    assert done.losses == pytest.approx(alone.losses, rel=2e-6)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5, abs=2e-6)


def test_log_probabilities_are_computed_once(folder: Path) -> None:
    """A run that resumes under another strategy has those of its checkpoint."""
    whole = trained("once", SINGLE, folder)
    config = ["--config", str(config_of("once", folder, folder / "cache-once"))]
    words = [*words_of(("fsdp", 2), folder), *config]
    first = run([*words, "--stop_at", "5"], folder / "once").ok()
    assert "pairs are computed\n" in first.out

    words = [*words_of(("zero3", 2), folder), *config, "--resume", "auto"]
    resumed = run(words, folder / "once").ok()
    assert "log-probabilities" not in resumed.out
    assert resumed.losses == pytest.approx(whole.losses, rel=2e-6)
