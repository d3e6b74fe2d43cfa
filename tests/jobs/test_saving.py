"""Keys that save memory and time, under every strategy: the curve of one process without them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, ranks
from tiny_language import save_model, save_texts

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "compile": ({}, {"compile": True}),
    "every second layer": ({"activation_checkpointing": 2}, {}),
    "eager": ({"attention": "eager"}, {}),
    "all of it": ({"activation_checkpointing": True, "adapter": {"r": 4}}, {"compile": True}),
    "adapter": ({"adapter": {"r": 4}}, {}),
    "4 bits": ({"adapter": {"r": 4, "quantize": "nf4"}}, {}),
    "all of it in 4 bits": (
        {"activation_checkpointing": True, "adapter": {"r": 4, "quantize": "nf4"}},
        {"compile": True},
    ),
}


@cache
def results(how: str, folder: Path) -> dict[str, dict[str, Any]]:
    model, texts = folder / "llama", folder / "texts.jsonl"
    if not model.exists():
        save_model(model)
        save_texts(texts, 60)
    task = {
        "model": str(model),
        "data": str(texts),
        "sequence_length": 64,
        "cache_dir": str(folder / "cache"),
    }
    cases = {name: ({**task, **own}, more) for name, (own, more) in CASES.items()}
    words = [
        "tests/workers/saving.py",
        f"accel_configs/{how}.yaml",
        folder / how,
        json.dumps(cases),
    ]
    done = ranks(words, 0 if how == "single" else 2, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return {name: json.loads((folder / how / f"{name}.json").read_text()) for name in CASES}


@pytest.mark.slow
@pytest.mark.parametrize("how", [*STRATEGIES, "zero3_offload"])
def test_keys_that_save_memory_or_time_leave_the_curve_of_one_process(
    how: str, folder: Path
) -> None:
    alone, found = results("single", folder), results(how, folder)
    for name in CASES:
        adapter = CASES[name][0].get("adapter", {})
        reference = alone["4 bits" if "quantize" in adapter else "adapter" if adapter else "plain"]
        assert found[name]["losses"] == pytest.approx(reference["losses"], rel=1e-5), name
        assert len(reference["losses"]) == 20 and found[name]["names"] == reference["names"]
        assert bool(found[name]["compiled"]) == ("compile" in CASES[name][1]), name
