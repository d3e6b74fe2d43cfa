"""Layers that are unfrozen in the middle of a run, and runs that end early, have one curve everywhere.

| promised | strategies and worlds | tests |
|---|---|---|
| Unfreezing does what PyTorch does with requires_grad and a new parameter group | one process | test_unfreezing_is_that_of_plain_pytorch |
| It has the same curve everywhere, also by a callback | DDP on 2; FSDP2, ZeRO-1, 2 and 3 on 2 (nightly) | test_the_curve_is_that_of_one_process |
| A resume before, at and after it changes no bit, and goes on from any layout | DDP on 2; FSDP2, ZeRO-1, 2 and 3 on 2 (nightly) | test_it_resumes_before_at_and_after_the_step |
| No trace of it is in the frozen layers before | one process, DDP on 2; FSDP2, ZeRO-1, 2 and 3 on 2 (nightly) | test_until_then_the_layers_and_their_average_stay_as_they_are |
| Under bf16 it does so with units of their own, too | FSDP2, ZeRO-3 on 2 (nightly) | test_low_precision_reduces_the_new_gradients_in_full |
| A run that stop_at ends has the curve of the whole when it goes on | one process | test_stop_at_ends_under_the_schedule_of_the_whole_run |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import STRATEGIES, launch_file, ranks
from safetensors.torch import load_file
from unfreezing import GLOBAL_BATCH, STEM_RATE, STEPS, UNFROZEN_AT, Net

from trainer.checkpoint import discover, store
from trainer.checkpoint.ranges import Ranges, of_rank_files

CLASSES = {"single": "DDP", "ddp": "DDP", "fsdp": "FSDP2"}  # the others: ZeRO
BY_CALLBACK = {
    "settings": {"unfreeze": {"layers": ["stem.0", "stem.1"]}},
    "by_callback": {"layers": "stem", "lr": STEM_RATE},
}
RESUMED_AT = (3, UNFROZEN_AT, 7)
QUICK = [pytest.param(name, marks=() if name == "ddp" else pytest.mark.slow) for name in STRATEGIES]


def checkpoint(run: Path, step: int) -> str:
    return str(run / "checkpoints" / store.name_of(step))


@cache
def trained(how: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The runs of a strategy: through, resumed from its own checkpoints and from those of one
    process, and by a callback.
    """
    world = 1 if how == "single" else 2
    place = folder / how
    cases: dict[str, Any] = {"whole": {}, "called": BY_CALLBACK}
    for step in RESUMED_AT:
        cases[f"own{step}"] = {"settings": {"resume": checkpoint(place / "whole", step)}}
    called = BY_CALLBACK["settings"] | {"resume": checkpoint(place / "called", 7)}
    cases["called7"] = BY_CALLBACK | {"settings": called}

    if how == "single":
        cases["reference"] = {"reference": True}
        until = {"output_dir": str(place / "parts"), "stop_at": 4}
        cases["until4"] = {"settings": until}
        cases["again4"] = {"settings": until | {"resume": "auto"}}
        cases["until2epochs"] = {"settings": until | {"resume": "auto", "stop_at": "2 epochs"}}
        cases["to the end"] = {"settings": until | {"resume": "auto", "stop_at": None}}
        cases["back"] = {"settings": until | {"resume": "auto"}}
    else:
        alone, _ = trained("single", folder)
        for step in RESUMED_AT:
            cases[f"single{step}"] = {"settings": {"resume": checkpoint(alone / "whole", step)}}
    return place, launched(how, world, place, cases)


def launched(
    how: str, world: int, place: Path, cases: dict[str, Any], precision: str | None = None
) -> dict[str, Any]:
    place.mkdir(parents=True)
    file = launch_file(place / "accel.yaml", how, world, precision)
    # Stem and body are units of their own under FSDP2: the stem is frozen as a whole.
    text = file.read_text()
    units = "TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Sequential"
    file.write_text(text.replace("TRANSFORMER_BASED_WRAP", f"{units}\n"))
    told = {"accel_config": str(file), "folder": str(place), "world": world, "cases": cases}
    done = ranks(["tests/workers/unfreezing.py", json.dumps(told)], world)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    facts: dict[str, Any] = json.loads((place / "facts.json").read_text())
    return facts


def rows(run: Path) -> dict[int, tuple[float, float]]:
    """Loss and norm of the gradient, by step."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in logged if "loss" in row}


def close(found: dict[int, tuple[float, float]], wanted: dict[int, tuple[float, float]]) -> bool:
    expected = {step: pytest.approx(wanted[step], rel=1e-5) for step in found}
    return found == expected


def opened(path: str) -> Ranges:
    found = discover.verify(discover.inspect(Path(path)))
    assert not found.problem, found
    return of_rank_files(found.path / name for name in found.files if name.endswith("safetensors"))


def test_unfreezing_is_that_of_plain_pytorch(folder: Path) -> None:
    place, facts = trained("single", folder)
    by_hand, found = facts["reference"], rows(place / "whole")
    losses = [loss for loss, _ in found.values()]
    norms = [norm for _, norm in found.values()]
    assert len(losses) == STEPS
    assert losses == pytest.approx(by_hand["losses"], rel=1e-6)
    assert norms == pytest.approx(by_hand["norms"], rel=1e-6)

    ranges = opened(checkpoint(place / "whole", STEPS))
    for name, tensor in torch.load(place / "reference.pt").items():
        if ranges.holds("parameter", name):
            torch.testing.assert_close(ranges.whole("parameter", name), tensor.flatten())
    rates = [json.loads(line) for line in (place / "whole/metrics.jsonl").read_text().splitlines()]
    of_stem = [row["lr/2"] for row in rates if "lr/2" in row]
    assert of_stem[:UNFROZEN_AT] == [0.0] * UNFROZEN_AT
    assert of_stem[UNFROZEN_AT] == pytest.approx(STEM_RATE * 0.5), "cosine in the middle"


@pytest.mark.parametrize("how", QUICK)
def test_the_curve_is_that_of_one_process(how: str, folder: Path) -> None:
    alone, _ = trained("single", folder)
    place, facts = trained(how, folder)
    stem = sum(parameter.numel() for parameter in Net().stem.parameters())
    everything = sum(parameter.numel() for parameter in Net().parameters())
    for name in ("whole", "called"):
        assert facts[name]["strategy"] == CLASSES.get(how, "ZeRO") and facts[name]["world"] == 2
        assert facts[name]["trainable"] == [everything - stem, everything]
        found = rows(place / name)
        assert list(found) == list(range(1, STEPS + 1))
        assert close(found, rows(alone / "whole")), name
    assert rows(place / "whole") == rows(place / "called")

    plan = json.loads((place / "whole/plan.json").read_text())
    [entry] = plan["unfreezing"]
    assert entry["at"] == UNFROZEN_AT and entry["parameters"] == stem
    assert plan["trainable_parameters"] == everything - stem
    line = f"step {UNFROZEN_AT}: stem.* is trained from now on: {stem} parameters, lr {STEM_RATE:g}"
    assert line in (place / "whole/log.txt").read_text()

    weights, others = (
        load_file(run / "model/model.safetensors") for run in (place / "whole", alone / "whole")
    )
    for name, _ in Net().named_parameters():
        torch.testing.assert_close(weights[name], others[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", QUICK)
def test_it_resumes_before_at_and_after_the_step(how: str, folder: Path) -> None:
    alone, _ = trained("single", folder)
    place, facts = trained(how, folder)
    whole = rows(place / "whole")
    for step in RESUMED_AT:
        expected = {number: values for number, values in whole.items() if number > step}
        assert rows(place / f"own{step}") == expected
        found = rows(place / f"single{step}")
        assert list(found) == list(expected)
        assert close(found, rows(alone / "whole")), step
    assert rows(place / "called7") == {n: values for n, values in whole.items() if n > 7}
    assert facts["own3"]["trainable"][0] < facts["own5"]["trainable"][0]


@pytest.mark.parametrize("how", ["single", *QUICK])
def test_until_then_the_layers_and_their_average_stay_as_they_are(how: str, folder: Path) -> None:
    place, _ = trained(how, folder)
    first = opened(checkpoint(place / "whole", 1))
    at, then = (
        opened(checkpoint(place / "whole", step)) for step in (UNFROZEN_AT, UNFROZEN_AT + 1)
    )
    names = [name for name, _ in Net().named_parameters() if name.startswith("stem.")]
    for name in names:
        value = first.whole("frozen", name)
        assert torch.equal(first.whole("average", name), value)
        assert torch.equal(at.whole("parameter", name), value), "trained after this step"
        assert torch.equal(at.whole("average", name), value)
        assert not torch.equal(then.whole("parameter", name), value)
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert not first.holds(f"optimizer.{key}", name)
            assert not at.holds(f"optimizer.{key}", name)
            assert then.holds(f"optimizer.{key}", name)
        assert then.whole("optimizer.step", name).item() == 1.0
    others = [name for name in first.names("parameter") if not name.startswith("stem.")]
    assert others and all(then.whole("optimizer.step", name).item() == 6.0 for name in others)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp", "zero3"])
def test_low_precision_reduces_the_new_gradients_in_full(how: str, folder: Path) -> None:
    """As DDP under autocast does; a unit that was frozen as a whole is one of its own."""
    curves = {}
    for name in ("ddp", how):
        place = folder / f"{name}-bf16-{how}"
        own = {"settings": {"resume": checkpoint(place / "whole", 7)}}
        facts = launched(name, 2, place, {"whole": {}, "own7": own}, "bf16")
        assert facts["whole"]["strategy"] == CLASSES.get(name, "ZeRO")
        curves[name] = rows(place / "whole")
        assert rows(place / "own7") == {n: v for n, v in curves[name].items() if n > 7}
    for step, (loss, norm) in curves[how].items():
        assert loss == pytest.approx(curves["ddp"][step][0], rel=0.02), step
        assert norm == pytest.approx(curves["ddp"][step][1], rel=0.05), step


def test_stop_at_ends_under_the_schedule_of_the_whole_run(folder: Path) -> None:
    place, facts = trained("single", folder)
    assert 64 // GLOBAL_BATCH == 4, "an epoch has four steps"
    assert rows(place / "parts") == rows(place / "whole"), "in four parts, and in one"
    text = (place / "parts/log.txt").read_text()
    for line in (
        "done: 10 steps",
        "stopped at step 4 of 10 (stop_at 4)",
        "stopped at step 8 of 10 (stop_at 2 epochs)",
        "10 steps, of which stop_at ends this run at 8, 4 an epoch",
    ):
        assert line in text
    assert facts["again4"]["finished"] and facts["until2epochs"]["finished"] is False
    assert facts["back"]["error"].startswith("resume: stop_at: 4: ends the run at step 4, and "), (
        facts["back"]
    )
    summary = json.loads((place / "parts/summary.json").read_text())
    assert summary["steps"] == 10 and summary["stopped_by"] is None
