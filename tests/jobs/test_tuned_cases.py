"""Settings of a fine-tune have one curve under every strategy, and go on under another.

| promised | strategies and worlds | tests |
|---|---|---|
| ORPO, SimPO, a last layer that is trained in chunks beside an adapter, DoRA, rows of tokens, several labels and a number of pairs of texts have the curve of one process, with accumulation | ZeRO-3 on 2; all on 2 (nightly) | test_settings_have_the_curve_of_one_process |
| Each goes on under another strategy | ZeRO-3 to FSDP2 on 2; each to the next (nightly) | test_a_run_goes_on_under_another_strategy |
| DoRA under ZeRO-3 is refused with a line | ZeRO-3 on 2 (nightly) | test_dora_under_zero3_is_refused |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import (
    STRATEGIES,
    command,
    json_in,
    json_lines,
    launch_file,
    run,
    some_quick,
    worked,
    wrapper_of,
)
from preferences import save_preferences
from tiny_language import paragraphs, save_model, save_rows, save_texts

GATHERS = "tests/workers/zero3_gathers.json"  # ZeRO-3 of parameters however small
NAMES = ["orpo", "simpo", "head", "dora", "tokens", "several", "number"]
NEXT = dict(zip(STRATEGIES, [*STRATEGIES[1:], STRATEGIES[0]], strict=True))


@cache
def given(folder: Path) -> Path:
    here = folder / "given"
    save_model(here / "llama")
    save_texts(here / "texts.jsonl", 60)
    save_preferences(here / "pairs.jsonl", 32)
    texts = paragraphs(64)
    rows = [{"text": texts[at][:60], "other": texts[at + 32][:40]} for at in range(32)]
    words = [["first", "second"][: at % 3] for at in range(32)]
    save_rows(here / "several.jsonl", [{**r, "label": w} for r, w in zip(rows, words, strict=True)])
    save_rows(here / "numbers.jsonl", [{**r, "label": at / 9 - 1} for at, r in enumerate(rows)])
    tokens = [[(3 + at * at + 7 * place) % 320 for place in range(9 + at)] for at in range(48)]
    learnt = [[-100] * (at % 5) + ids[at % 5 :] for at, ids in enumerate(tokens)]
    save_rows(
        here / "tokens.jsonl",
        [{"input_ids": i, "labels": w} for i, w in zip(tokens, learnt, strict=True)],
    )
    return here


@cache
def trained(strategy: str, folder: Path, start: str = "") -> Path:
    here = folder / f"{strategy}-{start}"
    here.mkdir()
    world = 1 if strategy == "single" else 2
    names = [name for name in NAMES if "zero3" not in (strategy, start) or name != "dora"]
    file = str(launch_file(here / "accel.yaml", strategy, world))
    told = {
        "accel_config": GATHERS if strategy == "zero3" else file,
        "folder": str(here),
        "given": str(given(folder)),
        "names": names,
        "resume": str(trained(start, folder)) if start else "",
    }
    worked(["tests/workers/tuned_cases.py", json.dumps(told)], world)
    if strategy != "single":
        facts = json_in(here / "found.json")
        assert facts["world_size"] == world
        assert facts["model_class"].startswith(wrapper_of(strategy))
    return here


def column(folder: Path, name: str, key: str) -> list[float]:
    return [row[key] for row in json_lines(folder / name / "metrics.jsonl") if key in row]


def check_same(found: Path, folder: Path, since: int = 0) -> None:
    alone = trained("single", folder)
    names = [name for name in NAMES if (found / name).exists()]
    assert len(names) >= len(NAMES) - 1
    for name in names:
        losses = column(alone, name, "loss")
        assert column(found, name, "loss") == pytest.approx(losses[since:], rel=1e-6), name
        norms = column(alone, name, "grad_norm")
        assert column(found, name, "grad_norm") == pytest.approx(norms[since:], rel=1e-5), name
        for metric in ("accuracy", "absolute_error", "loss"):
            wanted = column(alone, name, f"eval/{metric}")
            assert column(found, name, f"eval/{metric}")[-1:] == pytest.approx(
                wanted[-1:], rel=1e-6
            )
        assert losses[-1] < losses[0], f"{name} learns"


@pytest.mark.parametrize("strategy", some_quick("zero3"))
def test_settings_have_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    check_same(trained(strategy, folder), folder)


@pytest.mark.parametrize("start", some_quick("zero3"))
def test_a_run_goes_on_under_another_strategy(start: str, folder: Path) -> None:
    strategy = "fsdp" if start == "zero3" else NEXT[start]
    check_same(trained(strategy, folder, start), folder, since=2)


@pytest.mark.slow
def test_dora_under_zero3_is_refused(folder: Path) -> None:
    settings: dict[str, Any] = {
        "model": str(given(folder) / "llama"),
        "data": str(given(folder) / "texts.jsonl"),
        "cache_dir": str(folder / "cache"),
        "adapter": {"dora": True},
    }
    file = folder / "dora.yaml"
    config = {"task": "trainer.language:CausalLM", "task_settings": settings, "max_steps": 1}
    file.write_text(yaml.safe_dump(config))
    words = [*command("ranks", GATHERS, 2), "--config", str(file)]
    job = run(words, folder / "refused")
    assert job.code and "outside of its layer's call" in job.out
