"""Hooks about numbers that are not finite, and the table of the page that names all rules."""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Numbers, Plain
from launchers import ROOT
from one_process import fit
from torch import nn

from trainer import TrainerError, now
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.data.order import epoch_order


def test_the_page_names_each_rule_by_file_and_function() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    table = page.split("## A number that is not finite\n")[1].split("\n## ")[0]
    rows = re.findall(r"\| `([\w/]+)\.py` \| `([\w.]+)` \|", table)
    assert len(rows) == table.count("\n| ") - 1, "beside the head"
    for file, name in rows:
        module = import_module(f"trainer.{file.replace('/', '.')}")
        assert attrgetter(name)(module).__module__ == module.__name__


def test_samples_of_a_step_are_those_of_its_window() -> None:
    layout = Layout(rank=1, world_size=2, micro_batch_size=2, accumulation_steps=2)
    data = IndexedData(Numbers(19), layout, seed=3)
    order = epoch_order(19, 3, 0)
    assert data.parts(0, 8) == [order[2:4].tolist(), order[6:8].tolist()]
    assert data.parts(16, 19) == [order[17:19].tolist()], "a short last step"
    assert data.parts(19, 27)[0] == epoch_order(19, 3, 1)[2:4].tolist()


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_lost_gradient_of_a_finite_loss_is_named_with_its_step(
    limit: float | None, tmp_path: Path
) -> None:
    def lose(layer: nn.Module, gradients: Any) -> Any:
        return (gradients[0] * float("nan"),)

    class Lost(Plain):
        """A model whose gradient is lost between the last two layers."""

        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1), nn.Linear(1, 1))

        def training_step(self, model: nn.Module, batch: Any) -> Any:
            if len(model) == 3 and now().step == 3:
                model[1].register_full_backward_pre_hook(lose)
            return model(batch["x"]).square().mean()

    with pytest.raises(
        TrainerError,
        match=r"^step 3: the gradient is not finite, though the losses of all ranks are: of "
        r"1\.bias, 1\.weight, 0\.bias \(and 1 more\), in a step of samples [0-9, ]+ \(and \d+ more\) of "
        r"Data\.train\. Lower lr",
    ):
        fit(tmp_path, Lost(), max_steps=4, max_grad_norm=limit, sanity_evaluation=False)


class LosesValue(Plain):
    """Has a loss without a value in the third step, and a gradient with one."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch) + (float("nan") if now().step == 3 else 0.0)


@pytest.mark.parametrize(
    "settings", [{"log_every": 1, "save_every": None}, {"log_every": 9, "save_every": 3}]
)
def test_a_loss_whose_gradient_is_finite_ends_the_run_when_it_is_logged_or_saved(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TrainerError, match=r"^step 3: the loss on rank 0 is nan"):
        fit(tmp_path / "stop", LosesValue(), max_steps=4, **settings)
    for more in ({"on_nan": "skip"}, {"log_every": 9, "keep_last": 0}):
        run = fit(tmp_path / str([*more]), LosesValue(), max_steps=4, **{**settings, **more})
        assert run.step == 4 and run.skipped_steps == 0


class LosesAll(Plain):
    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch) * float("inf")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"on_nan": "skip"}, r"^step 32: the loss on rank 0 is inf, .*; 32 steps in a row were"),
        ({"mixed_precision": "fp16"}, r"^step 32: the loss on rank 0 is inf, of samples"),
    ],
    ids=["skip", "scaler"],
)
def test_a_run_that_skips_every_step_ends(
    settings: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainerError, match=told):
        fit(tmp_path, LosesAll(size=240), max_steps=50, save_every=None, **settings)
