"""ZeRO stages 1, 2 and 3 on DeepSpeed's engine.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".

What a rank holds: in stage 1 its part of the optimizer state, in stage 2 also of the gradients, in
stage 3 also of the parameters. A part is a slice of all parameters of a group laid end to end, so
it may begin within a row of a matrix. The engine averages gradients during each backward pass
(stage 1: the last pass of a step), clips and steps. The optimizer steps float32 copies, from which
the engine sets the parameters that the model computes with.

The engine has no public names for these copies, for which range of them a parameter has, and for
when a backward pass begins: see ``private/deepspeed.py``. DeepSpeed is imported only if one of
these strategies runs (3 s).
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from ..errors import LaunchError
from ..private import deepspeed as private_deepspeed
from ..private.deepspeed import engine_start
from .base import Shard, StepResult, Strategy, compute_in
from .deepspeed_start import prepare_process
from .gradient_order import GradientOrder
from .tensors import (
    canonical_state,
    hold_scalars_as_vectors,
    is_on_meta,
    keep_in_step,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..plan import Plan

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# DeepSpeed's default, in elements: 2 GB of float32, also for a model of a thousand.
_LARGEST_BUCKET = 500_000_000


class ZeRO(Strategy):
    """Optimizer state (1), gradients (2) and parameters (3) sharded over the ranks."""

    held = "flat slices of all parameters"

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        super().__init__(plan, accelerator)
        # Accelerate puts the configuration where transformers finds it, whatever zero3_init_flag
        # says: from_pretrained and from_config would then give parameters that are sharded already,
        # of shape [0].
        accelerator.state.deepspeed_plugin.dschf = None
        self._stage = STAGES[plan.strategy]
        self._order: GradientOrder | None = None  # one process needs none
        self._delayed_reduction = contextlib.ExitStack()  # open for the length of a window

    # -- set-up -----------------------------------------------------------------------------------

    @classmethod
    def prepare_process(cls, plan: Plan) -> None:
        prepare_process(plan)
        super().prepare_process(plan)

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        offload = plan.deepspeed.get("zero_optimization", {}).get("offload_optimizer") or {}
        return bool(offload.get("device", "none") != "none")

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import DeepSpeedPlugin

        # DeepSpeed calls collectives by names that torch 2.13 renamed. One line a call on every
        # rank.
        warnings.filterwarnings(
            "ignore", r".*is deprecated. Please use `torch.distributed.*_single`", FutureWarning
        )
        return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=engine_config(plan))}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        # Before the engine is built: it casts the model, and makes its float32 copies of the
        # rounded weights.
        is_mixed = self.plan.mixed_precision != "no"
        if is_mixed:
            from .full_buffers import keep_buffers_fp32

            put_back_buffers = keep_buffers_fp32(model)
        weights: dict[str, Tensor] = {}
        if is_mixed and not is_on_meta(model):
            weights = {name: tensor.detach() for name, tensor in canonical_state(model)}
        self._limit_bucket(model)
        if self.plan.find_unused_parameters:
            self._gather_whole_model(model)

        super().prepare(model, optimizer)
        self._take_engine()

        precision = self.plan.precision
        if self._stage == 1 and precision["gradients"] != precision["compute"]:
            private_deepspeed.accumulate_in(self.zero, DTYPES[precision["gradients"]])
        self._begin_backward = private_deepspeed.take_over_backward_start(self.engine)
        if self._stage == 3:
            private_deepspeed.gather_persistent(self.zero)
        if self.plan.find_unused_parameters:
            private_deepspeed.remove_leaf_hooks(self.zero)
        elif self.accelerator.num_processes > 1:
            method = private_deepspeed.REDUCE_METHODS[self._stage]
            self._order = GradientOrder(dict(self.parameters()), getattr(self.zero, method))
            setattr(self.zero, method, self._order.reduce)

        # The values that the cast has rounded come back. The engine leaves the model's inputs as
        # they are, so these are cast as well.
        if is_mixed:
            put_back_buffers(self.accelerator.device)
            self.fill(weights.items())
            compute_in(self.engine.module, DTYPES[self.plan.mixed_precision])

        # In stages 1 and 2 frozen parameters are the values themselves.
        trainable = None if self._stage == 3 else True
        self._temporary = list(self.parameters(trainable=trainable))

    def _limit_bucket(self, model: nn.Module) -> None:
        """Make the exchange bucket no larger than the model, unless the user gave a size."""
        config = self.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        elements = sum(parameter.numel() for parameter in model.parameters())
        config.setdefault("reduce_bucket_size", min(_LARGEST_BUCKET, elements))

    def _gather_whole_model(self, model: nn.Module) -> None:
        """Make stage 3 gather all parameters together, and keep them until the step.

        A layer that one rank leaves out could not be gathered by the others.
        """
        from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

        config = self.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        config["stage3_param_persistence_threshold"] = sys.maxsize
        set_z3_leaf_module(model, True)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        hold_scalars_as_vectors(model)
        if self._stage == 3:
            self._shard_parameters(model, optimizer)
            keep_in_step(model)
            # In evaluation torch's encoder layers would read the weights of layers inside, which
            # nobody has gathered.
            torch.backends.mha.set_fastpath_enabled(False)
        with engine_start(model):
            super().wrap(model, optimizer)

    def _shard_parameters(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard the parameters over the ranks, one at a time. Collective: call on every rank.

        The engine would put the whole model on each device first.
        """
        import deepspeed

        # It takes the settings alone from a module without parameters. Given the model it would not
        # cast the parameters that it shards.
        config = self.accelerator.state.deepspeed_plugin.deepspeed_config
        init: Any = deepspeed.zero.Init(module=nn.Module(), config_dict_or_path=config)
        on_meta = is_on_meta(model)
        if on_meta:
            from .meta_device import allocate, replace_in_optimizer

        replaced: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            if on_meta:
                allocate([module], self.accelerator.device, replaced)
            for parameter in module.parameters(recurse=False):
                if private_deepspeed.is_sharded(parameter):  # a shared parameter
                    continue
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(init.dtype)
                private_deepspeed.shard_parameter(init, parameter)

        if on_meta:
            replace_in_optimizer(optimizer, replaced)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self.accelerator.device)

    def _take_engine(self) -> None:
        """Set the engine, its ZeRO optimizer, and torch's optimizer, which has the groups."""
        engine: Any = self.model
        self.engine = engine
        self.zero = engine.optimizer
        self.optimizer = engine.basic_optimizer
        # A task asks for the model's ``config``. The engine has read its own by now.
        if hasattr(engine.module, "config"):
            engine.config = engine.module.config

    def temporary_parameters(self) -> Sequence[tuple[str, nn.Parameter]]:
        return self._temporary

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        # The engine has switches of its own to set.
        backend = settings.pop("backend")
        self.model.compile(backend=backend, compile_kwargs=settings)

    def verify(self) -> None:
        asked = self._stage, self.plan.max_grad_norm or 0.0
        runs = self.engine.zero_optimization_stage(), self.engine.gradient_clipping()
        if runs != asked:
            raise LaunchError(f"asked for stage and max_grad_norm {asked}, but {runs} run")

    # -- one step ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_step(self, *, boundary: bool) -> Iterator[None]:
        # The engine counts micro-batches itself, which is wrong for a short last window. So it is
        # told when a window ends.
        delays = self.plan.find_unused_parameters
        self.engine.set_gradient_accumulation_boundary(boundary or delays)
        if not delays:
            yield
            return

        if self._stage == 3:
            private_deepspeed.keep_gathered(self.zero)
        # Ranks may use different parameters: gradients are kept whole, and reduced in a fixed order
        # at the end of the window.
        if not self.engine.inside_no_sync_ctxt:
            self._delayed_reduction.enter_context(self.engine.coalesce_grad_reduction())
        yield
        if boundary:
            self._add_missing_gradients()
            self._delayed_reduction.close()

    def _add_missing_gradients(self) -> None:
        """Give gradients of zero to the parameters that this rank's micro-batches did not reach."""
        for _, parameter in self.parameters():
            if parameter.grad is not None or private_deepspeed.has_accumulated(parameter):
                continue
            # torch wants the gradient in the parameter's shape, which is empty while it is sharded.
            sharded = parameter.data
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.data = sharded.new_empty(shape)
            parameter.grad = torch.zeros_like(parameter)
            parameter.data = sharded

    def backward(self, loss: Tensor) -> None:
        if self._order is not None:
            self._order.start_backward(loss, gather_object)
        loss.register_hook(lambda gradient: self._begin_backward())  # type: ignore[no-untyped-call]
        # The loss carries its exact weight already. The engine would divide by the accumulation
        # steps once more.
        self.engine.backward(loss, scale_wrt_gas=False)
        if self._order is not None:
            self.fingerprint = self._order.fingerprint

    def finish_step(self) -> StepResult:
        # Accelerate would step the engine inside of backward. Here code can run between the two.
        # In every precision the engine makes no step with a gradient that is not finite, and
        # reports an infinite norm.
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        if not isinstance(norm, Tensor):
            value = float("nan") if norm is None else float(norm)
            norm = torch.full((), value, device=self.accelerator.device)

        overflow = bool(getattr(self.zero, "overflow", False))
        skipped = self.plan.mixed_precision == "fp16" and overflow
        return StepResult(grad_norm=norm, skipped=skipped)

    # -- weights ----------------------------------------------------------------------------------

    def shard(self, name: str, parameter: Any) -> Shard | None:
        if self._stage == 3:
            return self._shard_of_stage_3(name, parameter)
        if not parameter.requires_grad:
            return self.replicated(name, parameter.data)

        part = private_deepspeed.flat_range(self.zero, parameter)
        if part is None:
            return None
        assert part.start is not None
        return Shard(
            name=name,
            start=part.start,
            tensor=part.values,
            state_key=part.flat_group,
            state_offset=part.offset,
        )

    def _shard_of_stage_3(self, name: str, parameter: Any) -> Shard:
        flat: Tensor = parameter.ds_tensor.data
        state_key = None
        offset = 0
        if parameter.requires_grad:
            part = private_deepspeed.flat_range_stage_3(self.zero, parameter)
            flat, state_key, offset = part.values, part.flat_group, part.offset

        # Each rank has ceil(numel / world) elements. The last ones are padding, and left out.
        start = min(self.accelerator.process_index * flat.numel(), parameter.ds_numel)
        values = flat[: parameter.ds_numel - start]
        return Shard(
            name=name, start=start, tensor=values, state_key=state_key, state_offset=offset
        )

    def write_back(self) -> None:
        # The engine's own functions that set a value (safe_set_full_fp32_param) leave the copies
        # that the model computes with stale until the next step.
        if self._stage == 3:
            private_deepspeed.copy_to_model_stage_3(self.zero)
            private_deepspeed.gather_persistent(self.zero)
        else:
            self.zero.update_lp_params()
        self.writes += 1

    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        if parameter.requires_grad:
            whole = safe_get_full_fp32_param(parameter)
            assert isinstance(whole, Tensor), f"no full-precision copy of {name}"
            return whole
        with deepspeed.zero.GatheredParameters([parameter]):  # it is whole already but in stage 3
            return parameter.data.clone()

    # -- the scaler of fp16's loss ----------------------------------------------------------------

    def scaler_state(self) -> dict[str, float]:
        scaler = self.zero.loss_scaler
        if not scaler.dynamic:
            return {}
        good_steps = scaler.cur_iter - scaler.last_overflow_iter - 1
        return {
            "scale": scaler.cur_scale,
            "good_steps": good_steps,
            "hysteresis": scaler.cur_hysteresis,
        }

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        scaler = self.zero.loss_scaler
        if not scaler.dynamic or not state:
            return
        scaler.cur_scale = state["scale"]
        scaler.cur_iter = int(state["good_steps"])
        scaler.last_overflow_iter = -1
        scaler.cur_hysteresis = int(state.get("hysteresis", scaler.cur_hysteresis))

    def close(self) -> None:
        self.engine.destroy()
        super().close()


def engine_config(plan: Plan) -> dict[str, Any]:
    """Return DeepSpeed's configuration with every value set: no ``auto``, and no engine default."""
    config = copy.deepcopy(dict(plan.deepspeed))

    zero = config.setdefault("zero_optimization", {})
    if zero["stage"] == 3:
        zero.setdefault("stage3_gather_16bit_weights_on_model_save", True)

    config["train_micro_batch_size_per_gpu"] = plan.micro_batch_size
    config["gradient_accumulation_steps"] = plan.accumulation_steps
    config["train_batch_size"] = plan.global_batch_size
    # Left out, Accelerate fills in 1.0 and clips silently.
    config["gradient_clipping"] = plan.max_grad_norm or 0.0
    config["zero_allow_untested_optimizer"] = True
    # torch's fused AdamW steps offloaded state as well, with the same numbers as without offload.
    config.setdefault("zero_force_ds_cpu_optimizer", False)

    # Asked for float32 beside bf16 in stage 1, the engine takes another optimizer, of another
    # layout: there ``prepare`` sets it, and the configuration has the compute dtype.
    kind = "compute" if zero["stage"] == 1 else "gradients"
    data_types = config.setdefault("data_types", {})
    data_types["grad_accum_dtype"] = plan.precision[kind]

    # The engine's own clock would wait for the device before and after each forward pass and step.
    throughput = config.setdefault("timers", {}).setdefault("throughput", {})
    throughput.setdefault("enabled", False)

    for dtype in ("bf16", "fp16"):
        config[dtype] = {**config.get(dtype, {}), "enabled": plan.mixed_precision == dtype}
    if plan.mixed_precision != "no":
        # Gradients are exchanged in full precision, as DDP does it.
        config.setdefault("communication_data_type", "fp32")
    return config
