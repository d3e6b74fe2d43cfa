"""The data of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from layouts import Numbers, layout

from trainer import Data, Task, TrainConfig
from trainer.building.data import build_data


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
