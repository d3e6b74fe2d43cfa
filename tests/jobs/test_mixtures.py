"""Mixtures by weight and rows in blocks have one curve on every layout, and go on on any other.

| promised | strategies and worlds | tests |
|---|---|---|
| A mixture of a task of one's own has the losses and shares of one process, with noise by sample and pass | DDP on 3, FSDP2 on 2; all on 2 (nightly) | test_a_mixture_has_the_curve_of_one_process |
| A resume on another layout goes on with the same rows | the same, from one process, with a loading process | test_a_mixture_goes_on_on_another_layout |
| Both are true of rows that are read in blocks, over the end of an epoch | the same | test_rows_in_blocks_have_the_curve_of_one_process |
| So do mixtures of documents by tokens and of pairs, and texts that are tokenized, or packed, while they are read, by settings | DDP on 3; FSDP2, ZeRO-3 (nightly) | test_language_tasks_mix_documents_and_pairs |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, Job, slow_but, trained
from tuning import given, task_settings

LAYOUTS = [("ddp", 3), ("fsdp", 2), *((name, 2) for name in STRATEGIES if name != "fsdp")]
CONFIG = {
    **{"max_steps": 12, "save_every": 6, "global_batch_size": 24},
    **{"lr": 0.01, "eps": 1e-4, "log_every": 1},
}
LANGUAGE = ["documents", "preferences", "streamed", "packed"]
ROWS = 200  # in blocks


@cache
def in_blocks(folder: Path) -> str:
    """Return the pattern of two files of rows."""
    here = folder / "blocks"
    here.mkdir()
    for file in range(2):
        rows = [{"id": row, "label": row % 3} for row in range(file, ROWS, 2)]
        (here / f"rows{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"{here}/rows*.jsonl"


def task_of(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    if name == "own":
        return "data_tasks:Mixture", {}
    if name == "blocks":
        return "data_tasks:OnBlocks", {"files": in_blocks(folder)}

    texts, pairs = given("texts.jsonl", folder), given("pairs.jsonl", folder)
    settings: dict[str, Any] = {"data": texts.replace(".jsonl", "*.jsonl"), "stream": True}
    settings |= {"evaluation": texts, "sequence_length": 48}
    if name == "streamed":
        settings |= {"packing": "none", "long_documents": "cut"}
    if name == "preferences":
        few = {"path": pairs, "weight": 1, "max_samples": 20}
        settings = {"data": [few, {"path": pairs, "weight": 3, "name": "all"}]}
        settings |= {"sequence_length": 96, "adapter": {"r": 4}}
    if name == "documents":
        half = {"path": texts, "weight": 0.5, "passes": 1}
        settings = {"data": [half, {"path": given("chats.jsonl", folder), "weight": 0.5}]}
        settings |= {"sequence_length": 64, "weight_by": "tokens"}
    given("texts-2.jsonl", folder)
    task = "trainer.language:DPO" if name == "preferences" else "trainer.language:CausalLM"
    return task, task_settings(folder, model="llama", **settings)


@cache
def mixed(how: str, world: int, folder: Path, *, resumed: bool, language: bool) -> dict[str, Job]:
    """Train under a layout, or go on from one process, with a loading process."""
    configs = {}
    for name in LANGUAGE if language else ("own", "blocks"):
        task, settings = task_of(name, folder)
        micro = 8 if how == "single" else 4
        configs[name] = {"task": task, "task_settings": settings, **CONFIG}
        configs[name] |= {"micro_batch_size": micro, "workers": int(resumed)}
        if resumed:
            alone = mixed("single", 1, folder, resumed=False, language=language)[name]
            start = alone.output_dir / "checkpoints/step-00000006"
            configs[name]["resume"] = str(start)
    return trained(how, folder / f"{how}-{world}-{resumed}-{language}", configs, world=world)


def check_same(how: str, world: int, folder: Path, name: str, *, resumed: bool = False) -> Job:
    """Compare a run with the run of one process, which is returned."""
    language = name in LANGUAGE
    alone = mixed("single", 1, folder, resumed=False, language=language)[name]
    found = mixed(how, world, folder, resumed=resumed, language=language)[name]
    since = 6 * resumed
    assert found.column("step") == [step for step in alone.column("step") if step > since]
    assert found.losses == pytest.approx(alone.losses[since:], rel=1e-6)
    keys = sorted({key for row in alone.rows for key in row if key.startswith("mix/")})
    assert bool(keys) == (name not in ("blocks", "streamed", "packed"))
    for key in keys:
        assert found.column(key) == alone.column(key)[since:]
    assert found.column("eval/loss") == pytest.approx(alone.column("eval/loss"), rel=1e-6)
    assert alone.column("eval/loss") or name in ("documents", "preferences")
    return alone


@pytest.mark.parametrize(("how", "world"), slow_but(LAYOUTS[:2], LAYOUTS))
def test_a_mixture_has_the_curve_of_one_process(how: str, world: int, folder: Path) -> None:
    last = check_same(how, world, folder, "own")
    # Two passes over 20 rows end within the first steps, and the others share in proportion.
    assert last.column("mix/web/epoch")[-1] == 2.0 and last.column("mix/web/share")[-1] == 0.0


@pytest.mark.parametrize(("how", "world"), slow_but(LAYOUTS[:2], LAYOUTS))
def test_a_mixture_goes_on_on_another_layout(how: str, world: int, folder: Path) -> None:
    check_same(how, world, folder, "own", resumed=True)


@pytest.mark.parametrize(("how", "world"), slow_but(LAYOUTS[:2], LAYOUTS))
def test_rows_in_blocks_have_the_curve_of_one_process(how: str, world: int, folder: Path) -> None:
    for resumed in (False, True):
        alone = check_same(how, world, folder, "blocks", resumed=resumed)
    assert alone.column("epoch")[-1] > 1


@pytest.mark.parametrize(
    ("how", "world"), slow_but([("ddp", 3)], [("ddp", 3), ("fsdp", 2), ("zero3", 2)])
)
def test_language_tasks_mix_documents_and_pairs(how: str, world: int, folder: Path) -> None:
    for name in LANGUAGE:
        alone = check_same(how, world, folder, name, resumed=True)
        if name == "preferences":
            shares = alone.column("mix/all/share")
            assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.1)
