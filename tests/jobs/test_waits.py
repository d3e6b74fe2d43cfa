"""What a training step reads back to the host, under every strategy, is what docs/gpu.md lists.

| promised | strategies and worlds | tests |
|---|---|---|
| Nothing in a step waits for the device but what the page lists | one process; all on 2 | test_every_value_that_a_step_reads_back_is_listed |
| Every place on the page exists, and every call that waits is on it | none | test_every_place_of_the_page_exists_and_every_synchronize_is_on_it |
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from doc_pages import places_that_wait
from launchers import ROOT, json_in, launch_file, some_quick, worked
from tiny_language import save_model, save_texts

ENGINES = {"single": (), "others": ("ddp", "fsdp"), "zero": ("zero1", "zero2", "zero3")}
CASES = ("alone", "masked", "sgd", "unclipped")

Found = dict[str, dict[str, int]]


@cache
def found_by(engine: str, folder: Path) -> Found:
    """How often each place read back in two steps, by strategy and case."""
    place = folder / engine
    save_model(place / "out" / "llama")
    save_texts(place / "out" / "texts.jsonl", 300)
    files = []
    for strategy in ENGINES[engine]:
        files.append(launch_file(place / f"{strategy}.yaml", strategy, 2, "bf16"))
    worked(["tests/workers/waits.py", place / "out", *files], world=2 if files else 0)
    return json_in(place / "out" / "found.json")


def found(strategy: str, folder: Path) -> Found:
    engine = next((name for name, ran in ENGINES.items() if strategy in ran), "single")
    counts = found_by(engine, folder)
    return {case: counts[f"{strategy} {case}"] for case in CASES}


@pytest.mark.parametrize(
    "strategy",
    ["single", *some_quick("ddp", "fsdp")],
)
def test_every_value_that_a_step_reads_back_is_listed(strategy: str, folder: Path) -> None:
    waits, host = places_that_wait()
    for case, counts in found(strategy, folder).items():
        assert counts.keys() <= waits | host, f"{case}: not in docs/gpu.md"

        device = {place: count for place, count in counts.items() if place in waits}
        # Of two steps: an event, and the number that then is on the host.
        expected = {"trainer/checks/finite.py: __float__": 2 * 2}
        # Of two micro-batches each.
        expected["transformers/masking_utils.py: find_packed_sequence_indices"] = 2 * 2
        if case == "sgd" and not strategy.startswith("zero"):
            expected["trainer/strategies/finite_step.py: step_if_finite"] = 2
        if case in ("masked", "sgd"):  # they skip, and the model has buffers
            expected["trainer/strategies/base.py: left_out"] = 2
        if strategy.startswith("zero"):
            clips = case != "unclipped" and strategy != "zero3"
            expected["deepspeed/runtime/utils.py: is_invalid_grad_norm"] = 2 * (3 if clips else 1)
        if strategy in ("zero1", "zero2"):
            expected["deepspeed/runtime/zero/stage_1_and_2.py: has_overflow"] = 2
        assert device == expected, case


def test_every_place_of_the_page_exists_and_every_synchronize_is_on_it() -> None:
    waits, host = places_that_wait()
    for place in waits | host:
        file, _, function = place.partition(": ")
        if file.startswith("trainer/"):
            assert f"def {function}(" in (ROOT / file).read_text(), place

    files = {place.partition(": ")[0] for place in waits}
    # Of a stream that waits for another one (``wait_stream``) the host learns nothing.
    waiting = re.compile(r"\.synchronize\(")
    for path in (ROOT / "trainer").rglob("*.py"):
        if waiting.search(path.read_text()):
            assert str(path.relative_to(ROOT)) in files, "it waits for a device"
