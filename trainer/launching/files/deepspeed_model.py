"""The keys of a DeepSpeed JSON and their types, on DeepSpeed's own models.

Outside of four sections, DeepSpeed takes a misspelt key without a word, so keys are listed here. A
type with a single value is narrower than DeepSpeed's: the promises hold with this value only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from .switched_off import Off

Count = Annotated[int, Field(ge=1, strict=True)]


STRICT = ConfigDict(extra="forbid")

# Keys that turn on another training than the request.
UNSUPPORTED = (
    "autotuning", "data_efficiency", "datastates_ckpt", "expert_parallel", "hybrid_engine",
    "msamp", "pipeline", "sequence_parallel_size", "tensor_parallel", "torch_autocast",
    "weight_quantization",
)  # fmt: skip
# Keys that DeepSpeed reads without a check of the name, and that change no number here.
_OTHERS = (
    "aio", "checkpoint", "comet", "comms_logger", "csv_monitor",
    "dataloader_drop_last", "disable_allgather", "disable_python_gc", "dump_state",
    "flops_profiler", "log_level", "memory_breakdown", "prescale_gradients",
    "seq_parallel_communication_data_type", "steps_per_print", "tensorboard", "timers",
    "use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer",
)  # fmt: skip
_OF_ACTIVATION_CHECKPOINTING = (
    "contiguous_memory_optimization", "cpu_checkpointing", "number_checkpoints",
    "partition_activations", "profile", "synchronize_checkpoint_boundary",
)  # fmt: skip


def _any_of(name: str, keys: Iterable[str], kind: Any = Any) -> Any:
    """Return a model whose keys are optional and have values of a single type."""
    fields: Any = dict.fromkeys(keys, (kind, None))
    return create_model(name, __config__=STRICT, **fields)


class DataTypes(BaseModel):
    """The section ``data_types``. Weights and buffers are kept in full precision."""

    model_config = STRICT

    buffer_dtype: Literal["fp32"] | None = None
    grad_accum_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    keep_in_fp32_modules: Any = None
    param_dtype: None = None


class Typed(BaseModel):
    """A section ``optimizer`` or ``scheduler``."""

    model_config = STRICT

    type: str
    params: dict[str, Any] | None = None
    legacy_fusion: Off = None


class TopLevel(_any_of("Unsupported", UNSUPPORTED, Off), _any_of("Others", _OTHERS)):  # type: ignore[misc]
    """The top level, without the sections that DeepSpeed has models for."""

    train_batch_size: Count | None = None
    train_micro_batch_size_per_gpu: Count | None = None
    gradient_accumulation_steps: Count | None = None
    gradient_clipping: Annotated[float, Field(ge=0, strict=True)] | None = None
    optimizer: Typed | None = None
    scheduler: Typed | None = None
    activation_checkpointing: _any_of("Activation", _OF_ACTIVATION_CHECKPOINTING) | None = None  # type: ignore[valid-type]
    data_types: DataTypes | None = None
    communication_data_type: Literal["fp32"] | None = None  # reduce_dtype of the training config
    gradient_allreduce_op: Literal["mean"] = "mean"
    gradient_predivide_factor: Literal[1] = 1
    managed_gradient_accumulation: Literal[True] = True
    zero_force_ds_cpu_optimizer: Literal[False] = False


@functools.cache
def deepspeed_model() -> type[Any]:
    """Return the model of a whole JSON. The call imports DeepSpeed."""
    from deepspeed.compile.config import CompileConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

    class OffloadOptimizer(DeepSpeedZeroOffloadOptimizerConfig):  # type: ignore[misc]
        device: Literal["none", "cpu"] = "none"  # checkpoints cannot read the state from NVMe
        ratio: Literal[1] = 1
        super_offload: Literal[False] = False

    class Zero(DeepSpeedZeroConfig):  # type: ignore[misc]
        stage: Literal[0, 1, 2, 3] = 0
        compute_grad_norm: Literal[True] = True
        offload_optimizer: OffloadOptimizer | None = None
        zenflow: Off = None

    class FP16(DeepSpeedFP16Config):  # type: ignore[misc]
        fp16_master_weights_and_grads: Literal[False] = False

    class BF16(DeepSpeedBF16Config):  # type: ignore[misc]
        bf16_master_weights_and_grads: Literal[False] = False
        bf16_optimizer_states: Literal[False] = False

    class Compile(CompileConfig):  # type: ignore[misc]
        deepcompile: Literal[False] = False

    class Json(TopLevel):
        zero_optimization: Zero = Zero()
        fp16: FP16 = FP16()
        bf16: BF16 = BF16()
        compile: Compile = Compile()

    return Json
