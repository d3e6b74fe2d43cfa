"""The key ``unfreeze``: at which step the hook acts, what it says; and a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, losses, rows
from resuming import Odd

import trainer
from trainer import Callback, ConfigError, LaunchError, Run, StepInfo, TrainConfig

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
MIDDLE = {"layers": "middle", "at": 4}


class Seen(Callback):
    """Keeps the values of one layer before each step."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.trainable: list[int] = []

    def on_start(self, run: Run) -> None:
        self._keep(run)

    def on_step(self, run: Run, info: StepInfo) -> None:
        self._keep(run)

    def _keep(self, run: Run) -> None:
        self.values.append(run.model.middle.weight.detach().clone())  # type: ignore[union-attr]
        self.trainable.append(run.trainable)


def test_layers_are_trained_from_the_step_after_on(tmp_path: Path) -> None:
    seen = Seen()
    run = fit(tmp_path / "run", Odd(), seen, unfreeze=MIDDLE)
    same = [torch.equal(seen.values[0], value) for value in seen.values]
    assert same == [True] * 5 + [False] * 4
    of_layer = 5 * 3 + 3
    assert [count - seen.trainable[0] for count in seen.trainable] == [0] * 4 + [of_layer] * 5
    assert f"step 4: middle is trained from now on: {of_layer} parameters, lr 0.05" in log_of(
        tmp_path / "run"
    )
    assert list(run.rates) == [0.05] * 4, "with decay and without, before and since"
    logged = [row.get("lr/2") for row in rows(tmp_path / "run") if "loss" in row]
    assert logged[:4] == [0.0] * 4


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_resumed_run_has_the_same_curve(tmp_path: Path, step: int) -> None:
    fit(tmp_path / "whole", Odd(dropout=0.2), unfreeze=MIDDLE)
    again = tmp_path / "again"
    fit(
        again,
        Odd(dropout=0.2),
        unfreeze=MIDDLE,
        resume=str(checkpoint(tmp_path / "whole", step)),
    )
    whole = losses(tmp_path / "whole")
    assert losses(again) == {number: loss for number, loss in whole.items() if number > step}
    assert ("middle is trained from now on" in log_of(again)) == (step < 4)


def test_a_step_that_a_resumed_run_has_passed_is_made_up(tmp_path: Path) -> None:
    fit(tmp_path / "whole", Odd(), unfreeze=MIDDLE | {"at": 7})
    told = {"resume": str(checkpoint(tmp_path / "whole", 4)), "allow_config_change": True}
    fit(tmp_path / "again", Odd(), unfreeze=MIDDLE | {"at": 3}, **told)
    assert "step 4: middle is trained from now on" in log_of(tmp_path / "again")

    told["allow_config_change"] = False
    with pytest.raises(ConfigError, match=r"unfreeze.at: 7 -> 3"):
        fit(tmp_path / "third", Odd(), unfreeze=MIDDLE | {"at": 3}, **told)


def test_an_entry_behind_the_end_is_noted(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", Odd(), unfreeze=MIDDLE | {"at": 8})
    [note] = [text for text in run.facts["notices"] if "unfreeze" in text]
    assert note == (
        "unfreeze: middle is not trained: step 8 is not before the end of the run, step 8"
    )


def test_what_build_model_froze_can_be_unfrozen_and_what_is_not_named_cannot(
    tmp_path: Path,
) -> None:
    class Now(Callback):
        def on_step(self, run: Run, info: StepInfo) -> None:
            run.unfreeze("frozen", lr=0.01)  # again and again
            if info.step == 3:
                run.unfreeze("back")

    with pytest.raises(
        LaunchError, match=r"run.unfreeze\(back\): the key unfreeze names frozen\.\*: "
    ):
        fit(tmp_path / "run", Odd(), Now(), unfreeze={"layers": "frozen.*"})
    text = log_of(tmp_path / "run")
    assert text.count("is trained from now on: 30 parameters, lr 0.01") == 1


def test_a_loop_of_ones_own_unfreezes_by_itself(tmp_path: Path) -> None:
    def config(entry: dict[str, Any]) -> TrainConfig:
        return TrainConfig(
            task="resuming:Odd", output_dir=str(tmp_path / "own"), max_steps=8, unfreeze=entry
        )

    with pytest.raises(ConfigError, match=r"unfreeze.at: 4: a loop of your own"):
        trainer.build(Odd(), config(MIDDLE))
    run = trainer.build(Odd(), config({"layers": "middle"}))
    assert not run.model.middle.weight.requires_grad  # type: ignore[union-attr]
    run.unfreeze("middle")
    assert run.model.middle.weight.requires_grad  # type: ignore[union-attr]
    run.close()


def test_stop_at_ends_a_loop_of_ones_own_too(tmp_path: Path) -> None:
    config = TrainConfig(
        task="resuming:Odd",
        output_dir=str(tmp_path / "own"),
        micro_batch_size=24,
        epochs=4,
        stop_at="2 epochs",
    )
    run = trainer.build(Odd(), config)
    assert len(list(run.windows())) == run.last_step == 6
    assert run.total_steps == 12, "which the schedule follows"
    run.close()
