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
from launchers import STRATEGIES, json_in, json_lines, launch_file, worked, wrapper_of
from preferences import save_preferences
from tiny_language import conversation, paragraphs, save_model, save_rows, save_texts

QUICK = [("ddp", 3), ("fsdp", 2)]
CASES = [
    *QUICK,
    *(pytest.param(name, 2, marks=pytest.mark.slow) for name in STRATEGIES if name != "fsdp"),
]
LANGUAGE = ["documents", "preferences", "streamed", "packed"]
ROWS = 200  # in blocks


@cache
def given(folder: Path) -> Path:
    here = folder / "given"
    save_model(here / "llama")
    save_texts(here / "texts.jsonl")
    save_texts(here / "texts-2.jsonl")
    texts = paragraphs(60)
    chats = [conversation(texts[at][:60], texts[at + 1]) for at in range(0, 60, 2)]
    save_rows(here / "chats.jsonl", chats)
    save_preferences(here / "pairs.jsonl")
    return here


@cache
def in_blocks(folder: Path) -> Path:
    here = folder / "blocks"
    here.mkdir()
    for file in range(2):
        rows = [{"id": row, "label": row % 3} for row in range(file, ROWS, 2)]
        (here / f"rows{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return here


@cache
def trained(strategy: str, world: int, folder: Path, *, resumed: bool, language: bool) -> Path:
    here = folder / f"{strategy}-{world}-{resumed}-{language}"
    here.mkdir()
    start = trained("single", 1, folder, resumed=False, language=language) if resumed else ""
    told = {
        "accel_config": str(launch_file(here / "accel.yaml", strategy, world)),
        "folder": str(here),
        "given": str(given(folder) if language else in_blocks(folder)),
        "names": LANGUAGE if language else ["own", "blocks"],
        "micro_batch_size": 8 if strategy == "single" else 4,
        "resume": str(start),
    }
    worked(["tests/workers/mixing.py", json.dumps(told)], world)
    if strategy != "single":
        facts = json_in(here / "found.json")
        assert facts["world_size"] == world
        assert facts["model_class"].startswith(wrapper_of(strategy))
    return here


def rows_of(folder: Path, name: str, key: str = "loss") -> list[dict[str, Any]]:
    return [row for row in json_lines(folder / name / "metrics.jsonl") if key in row]


def check_same(alone: Path, found: Path, name: str, since: int = 0) -> None:
    wanted = [row for row in rows_of(alone, name) if row["step"] > since]
    rows = rows_of(found, name)
    assert [row["step"] for row in rows] == [row["step"] for row in wanted]
    for row, of_one in zip(rows, wanted, strict=True):
        assert row["loss"] == pytest.approx(of_one["loss"], rel=1e-6)
        mix = {key: value for key, value in of_one.items() if key.startswith("mix/")}
        assert bool(mix) == (name not in ("blocks", "streamed", "packed"))
        assert {key: row[key] for key in mix} == mix

    evaluated = [
        [row["eval/loss"] for row in rows_of(of, name, "eval/loss")] for of in (alone, found)
    ]
    if name not in ("documents", "preferences"):
        assert evaluated[0] and evaluated[1] == pytest.approx(evaluated[0], rel=1e-6)


@pytest.mark.parametrize(("strategy", "world"), CASES)
def test_a_mixture_has_the_curve_of_one_process(strategy: str, world: int, folder: Path) -> None:
    alone = trained("single", 1, folder, resumed=False, language=False)
    found = trained(strategy, world, folder, resumed=False, language=False)
    check_same(alone, found, "own")
    last = rows_of(alone, "own")[-1]
    # Two passes over 20 rows end within the first steps, and the others share in proportion.
    assert last["mix/web/epoch"] == 2.0 and last["mix/web/share"] == 0.0


@pytest.mark.parametrize(("strategy", "world"), CASES)
def test_a_mixture_goes_on_on_another_layout(strategy: str, world: int, folder: Path) -> None:
    alone = trained("single", 1, folder, resumed=False, language=False)
    found = trained(strategy, world, folder, resumed=True, language=False)
    check_same(alone, found, "own", since=6)


@pytest.mark.parametrize(("strategy", "world"), CASES)
def test_rows_in_blocks_have_the_curve_of_one_process(
    strategy: str, world: int, folder: Path
) -> None:
    alone = trained("single", 1, folder, resumed=False, language=False)
    for resumed in (False, True):
        found = trained(strategy, world, folder, resumed=resumed, language=False)
        check_same(alone, found, "blocks", since=6 * resumed)
    assert rows_of(alone, "blocks")[-1]["epoch"] > 1


@pytest.mark.parametrize(
    ("strategy", "world"),
    [("ddp", 3), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("fsdp", "zero3"))],
)
def test_language_tasks_mix_documents_and_pairs(strategy: str, world: int, folder: Path) -> None:
    alone = trained("single", 1, folder, resumed=False, language=True)
    found = trained(strategy, world, folder, resumed=True, language=True)
    for name in LANGUAGE:
        check_same(alone, found, name, since=6)
    shares = [row["mix/all/share"] for row in rows_of(alone, "preferences")]
    assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.1)
