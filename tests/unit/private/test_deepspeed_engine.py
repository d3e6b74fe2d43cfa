"""Private attributes of DeepSpeed: a release that removes one is named here.

Most of them exist on a running engine only, which the jobs in ``tests/jobs/`` have; so the source
of the class is searched for the name.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import deepspeed
import pytest

from trainer.private import deepspeed_engine as private_deepspeed
from trainer.private.deepspeed_engine import REDUCE_METHODS

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
STAGES_1_AND_2 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
STAGE_3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
INIT = "deepspeed.runtime.zero.partition_parameters:Init"
COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"
OFFLOAD = "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload"
LINKAGE = "deepspeed.utils.mixed_precision_linkage"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (COORDINATOR, "is_complete_trace"),
        (ENGINE, "_backward_prologue"),
        (ENGINE, "_backward_prologue_per_tensor"),
        (ENGINE, "basic_optimizer"),
        (ENGINE, "coalesce_grad_reduction"),
        (ENGINE, "inside_no_sync_ctxt"),
        (ENGINE, "set_gradient_accumulation_boundary"),
        (INIT, "_convert_to_zero_parameters"),
        (INIT, "ds_active_sub_modules"),
        (INIT, "ds_id"),
        (INIT, "ds_numel"),
        (INIT, "ds_status"),
        (INIT, "ds_tensor"),
        (LINKAGE, "_hp_mapping"),
        (OFFLOAD, "get_param_coordinator"),
        (STAGES_1_AND_2, REDUCE_METHODS[1]),
        (STAGES_1_AND_2, REDUCE_METHODS[2]),
        (STAGES_1_AND_2, "_finalize_cpu_offload_gradient_accumulation"),
        (STAGES_1_AND_2, "_offload_accumulated_param_ids"),
        (STAGES_1_AND_2, "accumulated_grads_in_cpu"),
        (STAGES_1_AND_2, "cpu_offload"),
        (STAGES_1_AND_2, "gradient_accumulation_dtype"),
        (STAGES_1_AND_2, "grad_accum"),
        (STAGES_1_AND_2, "norm_for_param_grads"),
        (STAGES_1_AND_2, "param_buffer_of_bit16_for_cpu_offload_groups"),
        (STAGES_1_AND_2, "single_partition_of_fp32_groups"),
        (STAGES_1_AND_2, "update_lp_params"),
        (STAGES_1_AND_2, "use_grad_accum_attribute"),
        (STAGES_1_AND_2, "use_separate_grad_accum"),
        (STAGE_3, REDUCE_METHODS[3]),
        (STAGE_3, "_finalize_offload_gradient_accumulation"),
        (STAGE_3, "_get_fp32_opt_state_partition"),
        (STAGE_3, "_leaf_module_hooks"),
        (STAGE_3, "_offload_boundary_param_ids"),
        (STAGE_3, "_partition_all_parameters"),
        (STAGE_3, "_reassign_or_swap_out_partitioned_parameters"),
        (STAGE_3, "fp32_partitioned_groups_flat"),
        (STAGE_3, "get_param_id"),
        (STAGE_3, "grad_partitions_flat_buffer"),
        (STAGE_3, "grad_position"),
        (STAGE_3, "norm_for_param_grads"),
        (STAGE_3, "offload_optimizer"),
        (STAGE_3, "parameter_offload"),
        (STAGE_3, "persistent_parameters"),
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
