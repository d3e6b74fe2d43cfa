"""The data of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_run import TwoRanks
from layouts import Numbers, layout

from trainer import Data, Task, TrainConfig
from trainer.building.data import build_data, sample_data


@pytest.fixture
def algorithms_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "0")
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


class Counting(Task):
    def build_data(self) -> Data:
        return Data(train=Numbers(4))


@pytest.mark.usefixtures("algorithms_of_torch")
@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_reaches_the_flash_attention_packages(deterministic: bool) -> None:
    from transformers.modeling_flash_attention_utils import _process_flash_attention_kwargs

    config = TrainConfig(task="m:T", max_steps=1, deterministic=deterministic)
    build_data(Counting(), config, layout(), {}, pin_memory=False)
    every_argument = defaultdict(lambda: True)
    settings = _process_flash_attention_kwargs(8, 8, True, supports_mapping=every_argument)
    assert settings["deterministic"] == deterministic


@pytest.mark.usefixtures("algorithms_of_torch")
def test_deterministic_fills_no_memory_that_is_written_anyway() -> None:
    """torch's default writes NaN into each new buffer."""
    config = TrainConfig(task="m:T", max_steps=1, deterministic=True)
    build_data(Counting(), config, layout(), {}, pin_memory=False)
    assert torch.are_deterministic_algorithms_enabled() and not torch.empty(1000).isnan().all()
    assert not torch.utils.deterministic.fill_uninitialized_memory


class Named(Task):
    def build_data(self) -> Data:
        return Data(train=Numbers(4), evaluation={"clean": Numbers(3), "noisy": Numbers(2)})


def test_some_samples_of_each_evaluation_set_are_read_for_the_ranks_to_compare() -> None:
    config = TrainConfig(task="m:T", max_steps=1)
    data, windows = build_data(Named(), config, layout(), {}, pin_memory=False)
    alike: Any = TwoRanks()
    sampled = sample_data(config, data, windows, alike, needed=False)
    names = ["Data.train", "Data.evaluation['clean']", "Data.evaluation['noisy']"]
    size = "the number of samples of "
    assert [fact.removeprefix(size) for fact in sampled.facts if fact.startswith(size)] == names
