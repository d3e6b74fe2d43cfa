"""``same_bits: true``: no bit of a run depends on its layout.

| promised | strategies and worlds | tests |
|---|---|---|
| Losses, norms, evaluations and exported weights have the bits of one process, in float32 and bf16, over the end of an epoch, with cross attention, tied weights and dropout | DDP on 2, FSDP2 on 3, ZeRO-2 on 2, ZeRO-3 on 3; HSDP, ZeRO-1 and all on 1 to 4 (nightly) | test_no_bit_depends_on_the_layout |
| Without the mode they differ | DDP on 2 | test_without_the_mode_bits_differ |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, json_in, launch_file, worked, wrapper_of

CASES = ("cross", "cross bf16", "tied", "tied bf16")
MORE = ("sgd", "average")
QUICK = [("ddp", 2), ("fsdp", 3), ("zero2", 2), ("zero3", 3)]
EVERY = [
    (name, world) for name in STRATEGIES for world in (1, 2, 3, 4) if (name, world) != ("ddp", 1)
]
NIGHTLY = [layout for layout in (*EVERY, ("hsdp", 4)) if layout not in QUICK]
NUMBERS = ("losses", "norms", "evaluations", "weights")


def file_of(strategy: str, world: int, folder: Path) -> Path:
    """Write the launch file of a strategy. Under HSDP two groups hold copies of the model."""
    path = launch_file(folder / "accel.yaml", strategy.replace("hsdp", "fsdp"), world)
    if strategy == "hsdp":
        text = path.read_text()
        asked = text.replace("fsdp_config:\n", "fsdp_config:\n  fsdp_dp_replicate_size: 2\n")
        assert asked != text
        path.write_text(asked)
    return path


@cache
def numbers(strategy: str, world: int, cases: tuple[str, ...], folder: Path) -> dict[str, Any]:
    place = folder / f"{strategy}-{world}-{len(cases)}"
    place.mkdir()
    words: list[Any] = ["tests/workers/same_bits.py", place, ",".join(cases)]
    if strategy != "single":
        words.append(file_of(strategy, world, place))
    worked(words, 0 if strategy == "single" else world)
    return json_in(place / "found.json")


def differing(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, list[str]]:
    """Return the steps and tensors whose bits differ, by kind of number."""
    assert all(found[kind].keys() == expected[kind].keys() for kind in NUMBERS)
    return {
        kind: names
        for kind in NUMBERS
        if (names := [key for key in expected[kind] if found[kind][key] != expected[kind][key]])
    }


def compare(strategy: str, world: int, cases: tuple[str, ...], folder: Path) -> None:
    alone, found = numbers("single", 1, cases, folder), numbers(strategy, world, cases, folder)
    for case in cases:
        assert found[case]["world"] == world
        assert found[case]["class"].startswith(wrapper_of(strategy.replace("hsdp", "fsdp")))
        assert len(alone[case]["losses"]) == 3
        assert len(alone[case]["evaluations"]) == 2
        assert differing(found[case], alone[case]) == {}, case


@pytest.mark.parametrize(
    ("strategy", "world", "cases"),
    [
        *((*layout, CASES) for layout in QUICK),
        *(pytest.param(*layout, CASES, marks=pytest.mark.slow) for layout in NIGHTLY),
        *(pytest.param(*layout, MORE, marks=pytest.mark.slow) for layout in QUICK),
    ],
)
def test_no_bit_depends_on_the_layout(
    strategy: str, world: int, cases: tuple[str, ...], folder: Path
) -> None:
    compare(strategy, world, cases, folder)


def test_without_the_mode_bits_differ(folder: Path) -> None:
    alone, found = (numbers(*layout, ("off",), folder) for layout in (("single", 1), ("ddp", 2)))
    assert len(differing(found["off"], alone["off"])["weights"]) > 10
