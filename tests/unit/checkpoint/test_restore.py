"""What a resume gives back to a training, and weights alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, losses
from other_models import Smaller, Turned
from resuming import Odd
from torch import Tensor, nn

from trainer import CheckpointError, ConfigError, Run


class Steep(Odd):
    """Gradients that fp16 cannot hold at the scale that the scaler begins with."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return 30 * super().training_step(model, batch)


def test_the_scaler_of_fp16_is_restored(goes_on: Callable[..., tuple[Run, Run]]) -> None:
    whole, resumed = goes_on(Steep(), at=20, mixed_precision="fp16", max_steps=24)
    assert whole.skipped_steps > 0, "it had to look for its scale"
    assert resumed.strategy.scaler_state() == whole.strategy.scaler_state() != {}
    assert (resumed.skipped_steps, resumed.schedule.last_epoch) == (
        whole.skipped_steps,
        whole.schedule.last_epoch,
    )


class HeadFirst(Odd):
    """The same model, but the shared parameter comes first under its other name."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model._modules = {"head": model.head, **model._modules}
        return model


def test_a_shared_parameter_under_its_other_name_is_refused_at_resume(tmp_path: Path) -> None:
    """Its optimizer state stands under the first name, and would be lost without a word."""
    fit(tmp_path / "run", max_steps=2)
    path = checkpoint(tmp_path / "run", 2)
    said = r"does not hold this model: only one of the two has embedding.weight .*, head.weight"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "new", HeadFirst(), resume=str(path), allow_config_change=True)
    fit(tmp_path / "weights", HeadFirst(), max_steps=2, weights=str(path))


def test_a_run_that_saves_nothing_restores_the_optimizer_too(
    goes_on: Callable[..., tuple[Run, Run]],
) -> None:
    goes_on(then={"keep_last": 0, "save_every": None})


# -- data ------------------------------------------------------------------------------------------


class Counting:
    """A stream without a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < 50:
            self.at += 1
            yield torch.randint(0, 7, (6,), generator=torch.Generator().manual_seed(self.at))
        self.at = 0


class Keeping(Counting):
    """Keeps its state, in a tuple as Python's generators have it."""

    def state_dict(self) -> dict[str, tuple[int]]:
        return {"at": (self.at,)}

    def load_state_dict(self, state: dict[str, tuple[int]]) -> None:
        assert isinstance(state["at"], tuple)
        [self.at] = state["at"]


@dataclass(frozen=True, kw_only=True)
class Streamed(Odd):
    keeps: bool = False

    def build_data(self) -> Any:
        return type(super().build_data())(train=Keeping() if self.keeps else Counting())


@pytest.mark.parametrize("keeps", [True, False])
def test_streams_resume_at_their_position(
    keeps: bool, goes_on: Callable[..., tuple[Run, Run]]
) -> None:
    goes_on(Streamed(keeps=keeps))  # an epoch has three steps


def test_a_stream_goes_on_in_the_middle_of_an_epoch_with_a_changed_setting(
    goes_on: Callable[..., tuple[Run, Run]], tmp_path: Path
) -> None:
    """The stream is read over to its position, also if settings may have changed."""
    goes_on(Streamed(), then={"allow_config_change": True})
    resume = str(checkpoint(tmp_path / "run", 4))
    changed = {"allow_config_change": True, "weight_decay": 0.1}
    fit(tmp_path / "changed", Streamed(), resume=resume, **changed)
    assert list(losses(tmp_path / "changed")) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    "tasks", [(Odd(), Streamed()), (Streamed(keeps=True), Odd())], ids=["to", "from"]
)
def test_data_of_another_sort_is_refused(tasks: tuple[Odd, Odd], tmp_path: Path) -> None:
    first, second = tasks
    fit(tmp_path / "run", first, max_steps=4)
    resume = str(checkpoint(tmp_path / "run", 4))
    with pytest.raises(ConfigError, match=r"train_samples: (50 -> null|null -> 50)"):
        fit(tmp_path / "no", second, resume=resume)
    told = r"holds a value that no run writes: .*the training data was a (data set|stream), and is"
    with pytest.raises(CheckpointError, match=told):
        fit(tmp_path / "new", second, resume=resume, allow_config_change=True)


# -- weights alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["model", "checkpoints/step-00000002"])
def test_weights_of_another_shape_and_those_that_the_model_lacks_are_named(
    source: str, tmp_path: Path
) -> None:
    fit(tmp_path / "run", max_steps=2)
    weights = str(tmp_path / "run" / source)
    said = r"not hold this model: middle.weight has shape \(3, 5\), the model's is \(5, 3\)$"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "turned", Turned(), weights=weights)
    with pytest.raises(CheckpointError, match=r"nowhere: holds no .safetensors file"):
        fit(tmp_path / "other", weights=str(tmp_path / "nowhere"))
    fit(tmp_path / "less", Smaller(), max_steps=2, weights=weights)
    assert (
        f"note: {weights} holds tensors that are not in the model: forwards, frozen.weight, "
        "frozen.bias\n" in log_of(tmp_path / "less")
    )


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=2)
    model = tmp_path / "run/model/model.safetensors"
    shutil.copy(model, model.with_name("model.fp16.safetensors"))
    said = r"model/model.safetensors: parameter scale: elements are in no file or stored twice"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "new", weights=str(model.parent))
