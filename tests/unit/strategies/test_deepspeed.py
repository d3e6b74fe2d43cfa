"""What can be known of ZeRO without an engine: its configuration, and how groups are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import plan, request

from trainer.errors import LaunchError
from trainer.strategies.deepspeed import ZeRO, engine_config


def zero(strategy: str, **settings: Any) -> ZeRO:
    """Build the strategy without a process group."""
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": {}}, dschf="registered")
    state = SimpleNamespace(deepspeed_plugin=plugin)
    accelerator: Any = SimpleNamespace(
        device=torch.device("cpu"), state=state, process_index=1, num_processes=2
    )
    return ZeRO(plan(request(strategy), **settings), accelerator)


def test_the_configuration_keeps_what_the_user_wrote() -> None:
    written = {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 7},
        "timers": {"throughput": {"enabled": True}},
    }
    made = plan(request("zero2", deepspeed=written), mixed_precision="bf16")
    config = engine_config(made)
    assert config["zero_optimization"]["reduce_bucket_size"] == 7
    assert config["timers"]["throughput"]["enabled"] is True
    assert "gradient_clipping" not in made.deepspeed, "the plan's own dictionary is not changed"


def test_the_configuration_is_not_left_to_transformers() -> None:
    assert zero("zero3").accelerator.state.deepspeed_plugin.dschf is None


@pytest.mark.parametrize(
    ("stage", "clip", "told"),
    [
        (1, 1.0, r"asked for stage and max_grad_norm \(2, 1.0\), but \(1, 1.0\) run"),
        (2, 9.0, r"\(2, 9.0\) run"),
    ],
)
def test_an_engine_that_runs_otherwise_is_refused(stage: int, clip: float, told: str) -> None:
    class DeepSpeedEngine:
        def zero_optimization_stage(self) -> int:
            return stage

        def gradient_clipping(self) -> float:
            return clip

    strategy = zero("zero2", max_grad_norm=1.0)
    strategy.engine = DeepSpeedEngine()
    with pytest.raises(LaunchError, match=told):
        strategy.verify()


def test_the_shard_of_the_last_rank_ends_before_the_padding() -> None:
    """Five elements over two ranks: three each, of which the last one is padding."""
    frozen: Any = SimpleNamespace(
        requires_grad=False,
        ds_numel=5,
        ds_tensor=torch.tensor([3.0, 4.0, 0.0]),
    )
    shard = zero("zero3").shard("weight", frozen)
    assert shard.start == 3 and shard.tensor.tolist() == [3.0, 4.0]


def test_the_scaler_counts_good_steps() -> None:
    strategy = zero("zero2")
    scaler = SimpleNamespace(
        dynamic=True, cur_scale=8.0, cur_iter=7, last_overflow_iter=2, cur_hysteresis=1
    )
    strategy.zero = SimpleNamespace(loss_scaler=scaler)
    state = strategy.scaler_state()
    assert state == {"scale": 8.0, "good_steps": 4, "hysteresis": 1}
    strategy.load_scaler_state(state)
    assert strategy.scaler_state() == state
