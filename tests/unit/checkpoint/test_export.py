"""What a run cannot save is known before its first step; what it can is saved, and no worthless
weights are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_in
from one_process import checkpoint, fit, log_of, steps
from resuming import Odd
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer import Callback, CheckpointError, Run, StepInfo, TrainerError, load_export
from trainer.checkpoint import exported
from trainer.checkpoint.exported import export_dtypes, save_config
from trainer.commands import cli
from trainer.task import Pretrained


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
        self.second.weight = self.first.weight


def test_an_exported_model_is_loaded_strictly(tmp_path: Path) -> None:
    whole = {"first.weight": torch.randn(2, 3), "first.bias": torch.randn(2)}
    with pytest.raises(CheckpointError, match="does not hold this model: No such file"):
        load_export(Tied(), tmp_path)
    for wrong in ({"first.bias": torch.zeros(3)}, {"more": torch.zeros(3)}):
        save_file(whole | wrong, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"does not hold this model: .*{min(wrong)}"):
            load_export(Tied(), tmp_path)
    save_file(whole, tmp_path / "model.safetensors")
    load_export(model := Tied(), tmp_path)
    assert torch.equal(model.second.weight, whole["first.weight"])
    assert torch.equal(model.first.bias, whole["first.bias"])


@dataclass(frozen=True, kw_only=True)
class Lost(Odd):
    """The loss with its gradient, only the gradient, or only the value is lost at a step."""

    at: int = 5
    lost: str = "both"

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().training_step(model, batch)
        if self.seen["steps"] != self.at:
            return loss
        nothing = float("nan")
        gradient = (model.scale - model.scale.detach()).sqrt().sum()
        return {"both": loss * nothing, "gradient": loss + gradient, "value": loss + nothing}[
            self.lost
        ]


class RuinsOne(Callback):
    """Loses a value of a weight, a buffer, the moving average or the optimizer's state."""

    def __init__(self, at: int, what: str) -> None:
        self.at, self.what = at, what

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step == self.at:
            model: Any = trainer.model
            averages = {shard.name: average for shard, average in trainer.average.pairs}
            tensor = {
                "parameter scale": model.scale.data,
                "buffer mean": model.mean,
                "frozen frozen.bias": model.frozen.bias.data,
                "average scale": averages["scale"],
                "optimizer.exp_avg scale": trainer.strategy.optimizer.state[model.scale]["exp_avg"],
            }[self.what]
            tensor.view(-1)[0] = float("nan")


@pytest.mark.parametrize(
    ("task", "step", "said"),
    [
        ({"at": 5}, 6, r"step 5: the loss on rank 0 is nan, of samples .* of Data.train. Lower lr"),
        ({"at": 6, "lost": "value"}, 6, r"step 6: the loss on rank 0 is nan"),
        ({"at": 7, "lost": "gradient"}, 8, r"step 7: the gradient is not finite"),
    ],
    ids=["before", "value", "last"],
)
@pytest.mark.parametrize("on_save_error", ["stop", "continue"])
def test_weights_that_are_not_finite_never_replace_good_ones(
    task: dict[str, Any], step: int, said: str, on_save_error: str, tmp_path: Path
) -> None:
    settings = {"log_every": 100, "keep_last": 1, "on_save_error": on_save_error}
    with pytest.raises(TrainerError, match=said):
        fit(tmp_path, Lost(**task), **settings)
    assert steps(tmp_path) == [step - 2], "the one that was being written is complete"
    # A task that loses nothing
    fit(tmp_path, Odd(), resume="auto", **settings, allow_config_change=True)
    assert steps(tmp_path) == [8]


class Masking(Odd):
    """Has a mask of -inf, a statistic that is written to, and a frozen layer."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_buffer("mask", torch.full((3,), float("-inf")))
        model.register_buffer("mean", torch.zeros(3))
        return model


@pytest.mark.parametrize(
    "what",
    [
        "parameter scale",
        "buffer mean",
        "frozen frozen.bias",
        "average scale",
        "optimizer.exp_avg scale",
    ],
)
def test_nothing_that_is_not_finite_is_saved_but_an_infinite_mask(
    what: str, tmp_path: Path
) -> None:
    settings = {"keep_last": 1, "ema_decay": 0.9}
    with pytest.raises(
        TrainerError, match=f"^step 6: {what} holds values that are not finite: no checkpoint of it"
    ):
        fit(tmp_path, Masking(), RuinsOne(6, what), **settings)
    assert steps(tmp_path) == [4]
    fit(tmp_path, Masking(), resume="auto", **settings)
    assert steps(tmp_path) == [8]
    assert "values that are not finite" not in log_of(tmp_path)


def test_an_export_that_safetensors_cannot_read_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit(tmp_path / "run")
    before = (tmp_path / "run/model/model.safetensors").read_bytes()
    real = exported.raw
    monkeypatch.setattr(exported, "raw", lambda tensor: real(tensor)[:-1])
    said = r"the model could not be written to .*: no readable safetensors file:"
    with pytest.raises(CheckpointError, match=said):
        run.export(tmp_path / "run/model")
    out = str(tmp_path / "out")
    assert cli.main(["export", str(checkpoint(tmp_path / "run", 8)), "--to", out]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == before


# -- dtypes ----------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))


def test_each_tensor_has_the_dtype_of_its_file_unless_another_is_asked_for(tmp_path: Path) -> None:
    model = Small()
    stored = {"body.weight": torch.ones(2, 2).bfloat16(), "first.head": torch.ones(2, 2)}
    save_file({**stored, "count": torch.ones(())}, tmp_path / "model.safetensors")
    source = Pretrained(folder=tmp_path, names={"first.head": "head.weight"})
    assert export_dtypes(model, "auto", [source]) == {"body.weight": torch.bfloat16}
    assert export_dtypes(model, "auto", []) == {}
    assert export_dtypes(model, "auto", [Pretrained(folder=tmp_path / "gone")]) == {}
    both = {"body.weight": torch.float16, "head.weight": torch.float16}
    assert export_dtypes(model, "float16", [source]) == both


def test_the_configuration_says_the_dtype_of_the_file_and_the_models_own_stays(
    tmp_path: Path,
) -> None:
    from transformers import LlamaConfig

    class OfTransformers(Small):
        config_class = LlamaConfig

    model = OfTransformers()
    model.config = LlamaConfig(hidden_size=8, num_attention_heads=1)  # type: ignore[assignment]
    model.config.dtype = torch.float32  # type: ignore[union-attr]
    save_config(model, tmp_path, torch.bfloat16)
    assert json_in(tmp_path / "config.json")["dtype"] == "bfloat16"
    assert model.config.dtype == torch.float32  # type: ignore[union-attr]
