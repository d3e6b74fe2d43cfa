"""Private attributes of DeepSpeed: a release that removes one is named here.

The names here are those that the code writes, or reads with a default. The jobs in ``tests/jobs/``
fail without any other name. Most exist on a running engine only, so the source of the class is
searched for the name.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import deepspeed
import pytest

from trainer.private import deepspeed_engine as private_deepspeed

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
STAGES_1_AND_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
INIT = "deepspeed.runtime.zero.partition_parameters:Init"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (ENGINE, "_backward_prologue"),
        (ENGINE, "_backward_prologue_per_tensor"),
        (INIT, "ds_id"),
        (INIT, "ds_status"),
        (STAGES_1_AND_2, "accumulated_grads_in_cpu"),
        (STAGES_1_AND_2, "gradient_accumulation_dtype"),
        (STAGES_1_AND_2, "grad_accum"),
        (STAGES_1_AND_2, "use_grad_accum_attribute"),
        (STAGES_1_AND_2, "use_separate_grad_accum"),
        (STAGE_3, "_leaf_module_hooks"),
    ],
)
def test_deepspeed_has_the_attribute(place: str, name: str) -> None:
    module, _, class_name = place.partition(":")
    found: Any = importlib.import_module(module)
    if class_name:
        found = getattr(found, class_name)
    assert name in inspect.getsource(found), (
        f"deepspeed {deepspeed.__version__} has no {name} in {place}: "
        "see trainer.private.deepspeed_engine.py"
    )


def test_deepspeed_takes_hooks_for_the_end_of_a_backward_pass() -> None:
    from deepspeed.runtime.base_optimizer import ZeROOptimizer

    assert hasattr(ZeROOptimizer, "register_grad_acc_post_hook"), (
        f"deepspeed {deepspeed.__version__} has no register_grad_acc_post_hook"
    )


def test_released_parameters_are_kept_in_a_cache_that_can_be_cleared() -> None:
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    decorated = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    assert hasattr(inspect.getclosurevars(decorated).nonlocals["func"], "cache_clear"), (
        f"deepspeed {deepspeed.__version__} keeps the parameters that a layer frees elsewhere"
    )


def test_an_operator_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed.ops

    assert "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__, (
        f"deepspeed {deepspeed.__version__} has no deepspeed_shm_comm in __compatible_ops__"
    )
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", True)
    private_deepspeed.switch_off_op("deepspeed_shm_comm")
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
