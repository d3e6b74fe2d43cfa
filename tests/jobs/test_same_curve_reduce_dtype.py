"""``reduce_dtype: bf16`` under every strategy, on two real processes: it is what travels, and the
curve is that of float32 but for the rounding.

| promised | strategies and worlds | tests |
|---|---|---|
| ``reduce_dtype: bf16`` is what travels, and the curve is that of float32 but for rounding | all on 2, in float32 and bf16 | test_gradients_travel_in_bf16_and_the_curve_stays |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, json_in, launch_file, worked

# Each rank rounds its gradient to eight binary digits, and the sum is rounded once more; the loss
# follows by as much of what the training has taken off it.
ROUNDING = 2.0**-8


@cache
def found_by(engine: str, folder: Path) -> dict[str, Any]:
    place = folder / f"reduce-{engine}"
    place.mkdir()
    names = [name for name in STRATEGIES if name.startswith("zero") == (engine == "zero")]
    files = [launch_file(place / f"{name}.yaml", name, 2) for name in names]
    worked(["tests/workers/reduce_dtypes.py", place, *files])
    return json_in(place / "found.json")


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_travel_in_bf16_and_the_curve_stays(
    strategy: str, precision: str, folder: Path
) -> None:
    found = found_by("zero" if strategy.startswith("zero") else "others", folder)
    exact = found[f"{strategy} {precision} float32"]
    rounded = found[f"{strategy} {precision} bf16"]
    assert (exact["plan"], rounded["plan"]) == ("fp32", "bf16")
    assert exact["gradients"] == rounded["gradients"] == "fp32", "micro-batches add up in it"

    assert "bf16" in rounded["sent"] and "bf16" not in exact["sent"]
    if strategy != "ddp":  # whose own reducer, in C++, sends float32
        assert "fp32" in exact["sent"]
    assert "fp32" not in rounded["sent"]

    taken_off = exact["losses"][0] - exact["losses"][-1]
    assert taken_off > 0.1
    differences = [abs(a - b) for a, b in zip(exact["losses"], rounded["losses"], strict=True)]
    assert 0 < max(differences) < ROUNDING * taken_off
    assert differences[0] == 0, "the first loss knows nothing of an exchange"
