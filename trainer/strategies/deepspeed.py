"""ZeRO stages 1, 2 and 3 on DeepSpeed's engine.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". A
rank holds a part of the optimizer state (stage 1), also of the gradients (2), also of the
parameters (3). A part is a slice of all parameters of a group laid end to end. The optimizer steps
float32 copies, from which the engine sets the parameters that the model computes with.
DeepSpeed is imported only if ZeRO runs (3 s).
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from ..errors import LaunchError
from ..private.deepspeed_engine import (
    REDUCE_METHODS,
    accumulate_in,
    clear_gradients,
    complete_offloaded_gradients,
    copy_to_model_stage_3,
    flat_group_stage_3,
    flat_groups,
    forget_released,
    gather_persistent,
    has_accumulated,
    is_sharded,
    keep_gathered,
    remove_leaf_hooks,
    shard_parameter,
    take_over_backward_start,
)
from ..private.torch import pre_hooks
from .base import Shard, StepResult, Strategy
from .deepspeed_start import prepare_process
from .gradient_order import noted, refuse_differing
from .memory import LARGEST_BUCKET
from .meta_device import allocate, replace_in_optimizer
from .outside_reads import NoOutsideReads
from .scalars import hold_scalars_as_vectors
from .tensors import (
    DTYPES,
    canonical_state,
    is_on_meta,
    keep_in_step,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..run_plan import Plan

_IN_STEP = (
    "training_step computes with a parameter outside of its layer's call, where ZeRO-3 holds no "
    "values: compute in the model's forward, or set find_unused_parameters: true, which keeps the "
    "values until the backward pass"
)
_IN_CALLBACK = (
    "a callback reads or changes a parameter, which has no values here, since ZeRO-3 keeps them in "
    "parts: do so in `with run.whole_parameters():`, in a callback's on_step"
)


class ZeRO(Strategy):
    """Optimizer state (1), gradients (2) and parameters (3) sharded over the ranks."""

    held = "flat slices of all parameters"
    casts_inputs = True

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        super().__init__(plan, accelerator)
        # Accelerate registers the configuration with transformers even if zero3_init_flag is false.
        # from_pretrained and from_config would then return sharded parameters, of shape [0].
        plugin = accelerator.state.deepspeed_plugin
        plugin.dschf = None
        self._config = plugin.deepspeed_config
        self._stage: int = plan.deepspeed["zero_optimization"]["stage"]
        self._compares = False  # before the first backward pass, if the order is watched
        self._delayed_reduction = ExitStack()  # open for the length of a window
        # How many steps are watched for reads outside of layers. In the first step the parameters
        # that the trial of the loss has gathered may still be there.
        self._watched_steps = 2 if self._stage == 3 else 0
        self._watch = ExitStack()  # open in the forward pass of a step that is watched

    # -- set-up -----------------------------------------------------------------------------------

    @classmethod
    def prepare_process(cls, plan: Plan) -> None:
        prepare_process(plan)
        super().prepare_process(plan)

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        offload = plan.deepspeed["zero_optimization"].get("offload_optimizer") or {}
        return offload.get("device", "none") != "none"  # type: ignore[no-any-return]

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import DeepSpeedPlugin

        # DeepSpeed calls collectives by names that torch 2.13 renamed. Each call would warn on
        # every rank.
        warnings.filterwarnings(
            "ignore", r".*is deprecated. Please use `torch.distributed.*_single`", FutureWarning
        )
        return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=engine_config(plan))}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        # The engine makes the float32 copies of the rounded weights. So weights are kept before.
        weights: dict[str, Tensor] = {}
        if self.plan.mixed_precision != "no" and not is_on_meta(model):
            weights = {name: tensor.detach() for name, tensor in canonical_state(model).items()}
        # The exchange bucket is no larger than the model, unless the user gave a size.
        settings = self._config["zero_optimization"]
        elements = sum(parameter.numel() for parameter in model.parameters())
        settings.setdefault("reduce_bucket_size", min(LARGEST_BUCKET, elements))
        if self.plan.find_unused_parameters:  # ranks may leave out different layers
            from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

            settings["stage3_param_persistence_threshold"] = sys.maxsize
            set_z3_leaf_module(model, True)

        super().prepare(model, optimizer)
        engine: Any = self.model
        self.engine = engine
        self.zero = engine.optimizer
        self.optimizer = engine.basic_optimizer  # torch's, with the parameter groups
        # A task asks for the model's ``config``. By now the engine has read the attribute.
        if hasattr(engine.module, "config"):
            engine.config = engine.module.config

        precision = self.plan.precision
        if self._stage == 1 and precision["gradients"] != precision["compute"]:
            accumulate_in(self.zero, DTYPES[precision["gradients"]])
        self._begin_backward = take_over_backward_start(self.engine)
        if self._stage == 3:
            gather_persistent(self.zero)
        self._take_over_reduction()

        if weights:  # which the cast has rounded
            self.fill(weights.items())

        # In stages 1 and 2 frozen parameters are the values themselves.
        self._temporary = list(self.parameters(trainable=None if self._stage == 3 else True))

    def _take_over_reduction(self) -> None:
        """Watch the order of the gradients on their way to the engine."""
        if self.plan.find_unused_parameters:
            remove_leaf_hooks(self.zero)
        elif self.accelerator.num_processes > 1:
            method = REDUCE_METHODS[self._stage]
            reduce = noted(getattr(self.zero, method), self.trainable, self.note_order)
            setattr(self.zero, method, reduce)
            self._compares = True

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        hold_scalars_as_vectors(model)
        if self._stage == 3:
            self._shard_parameters(model, optimizer)
            keep_in_step(model)
            # In evaluation torch's encoder layers would read the weights of layers inside, which
            # are not gathered.
            torch.backends.mha.set_fastpath_enabled(False)
        # The engine gathers a layer's parameters by hooks, before hooks of the task that read them
        # (torch.nn.utils.weight_norm, prune).
        of_task = [(hooks, [*hooks]) for hooks in map(pre_hooks, model.modules())]
        super().wrap(model, optimizer)
        for hooks, numbers in of_task:
            for number in numbers:
                hooks.move_to_end(number)

    def _shard_parameters(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard each parameter. The engine would put the whole model on each device first."""
        import deepspeed

        # A module without parameters, because Init would not cast the parameters of the model that
        # Init is given.
        init: Any = deepspeed.zero.Init(module=nn.Module(), config_dict_or_path=self._config)
        replaced: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            allocate([module], self.accelerator.device, replaced)
            for parameter in module.parameters(recurse=False):
                if is_sharded(parameter):  # a shared parameter
                    continue
                if not parameter.numel():
                    raise LaunchError(
                        "ZeRO-3 cannot gather a parameter without elements: leave its layer out of "
                        "the model"
                    )
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(init.dtype)
                shard_parameter(init, parameter)

        replace_in_optimizer(optimizer, replaced)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self.accelerator.device)

    def temporary_parameters(self) -> Sequence[tuple[str, nn.Parameter]]:
        return self._temporary

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        # The engine also sets switches for compiled models.
        self.model.compile(backend=settings.pop("backend"), compile_kwargs=settings)

    def verify(self) -> None:
        asked = self._stage, self.plan.max_grad_norm or 0.0
        runs = self.engine.zero_optimization_stage(), self.engine.gradient_clipping()
        if runs != asked:
            raise LaunchError(f"asked for stage and max_grad_norm {asked}, but {runs} run")

    # -- one step ---------------------------------------------------------------------------------

    @contextmanager
    def micro_step(self, *, boundary: bool) -> Iterator[None]:
        # The engine counts micro-batches itself, which is wrong for a short last window. So the
        # strategy tells the engine when a window ends.
        delays = self.plan.find_unused_parameters
        self.engine.set_gradient_accumulation_boundary(boundary or delays)
        if self._watched_steps:
            self._watch.enter_context(NoOutsideReads(_IN_STEP))
            self._watched_steps -= boundary
        if delays and self._stage == 3:
            keep_gathered(self.zero)
        # Ranks may use different parameters: gradients are kept whole, and reduced in a fixed order
        # at the end of the window.
        if delays and not self.engine.inside_no_sync_ctxt:
            self._delayed_reduction.enter_context(self.engine.coalesce_grad_reduction())
        with self._watch:
            yield
        if delays and boundary:
            self._add_missing_gradients()
            self._delayed_reduction.close()

    def callback_context(self) -> AbstractContextManager[object]:
        if self._stage == 3:
            return NoOutsideReads(_IN_CALLBACK)
        return super().callback_context()

    def _add_missing_gradients(self) -> None:
        """Give gradients of zero to the parameters that this rank's micro-batches did not reach."""
        for _, parameter in self.parameters():
            if parameter.grad is not None or has_accumulated(parameter):
                continue
            # torch wants the gradient in the parameter's shape. A sharded parameter is empty.
            sharded = parameter.data
            parameter.data = sharded.new_empty(getattr(parameter, "ds_shape", parameter.shape))
            parameter.grad = torch.zeros_like(parameter)
            parameter.data = sharded

    def backward(self, loss: Tensor) -> None:
        self.before_backward()
        self._watch.close()
        # The engine does so in ``forward``, where the step may go around the engine. Otherwise the
        # last micro-batch's gradients would replace those of the others.
        self.zero.clear_backward_seen_flag()
        if self._compares:
            self._compares = False
            refuse_differing(loss, dict(self.parameters()), gather_object)
        loss.register_hook(lambda gradient: self._begin_backward())  # type: ignore[no-untyped-call]
        # The loss carries the exact weight already. The engine would divide by the accumulation
        # steps once more.
        self.engine.backward(loss, scale_wrt_gas=False)
        if self._stage == 3:
            forget_released(self.zero)

    def finish_step(self, on_nan: str | None = None) -> StepResult:
        # Accelerate would step the engine inside of backward. Here code can run in between. In
        # every precision the engine makes no step with a gradient that is not finite, and reports
        # an infinite norm, or none.
        complete_offloaded_gradients(self.zero, self._stage)
        self.engine.step()
        clear_gradients(self.zero, self._stage)
        norm = self.engine.get_global_grad_norm()
        value = float("nan") if norm is None else norm
        norm = torch.as_tensor(value, device=self.accelerator.device)
        skipped = self.plan.mixed_precision == "fp16" and self.zero.overflow
        return StepResult(grad_norm=norm, skipped=skipped)

    # -- weights ----------------------------------------------------------------------------------

    def shard(self, name: str, parameter: Any) -> Shard:
        if self._stage < 3 and not parameter.requires_grad:
            return super().shard(name, parameter)

        rank = self.accelerator.process_index
        own = self.range_of(parameter, rank)
        if self._stage < 3:
            flat, place = self._flat_groups[parameter]
            offset = max(0, place - rank * flat.numel())
        elif parameter.requires_grad:
            flat, offset = flat_group_stage_3(self.zero, parameter)
        else:
            flat, offset = parameter.ds_tensor, 0
        return Shard(
            name=name,
            start=own.start,
            tensor=flat.detach()[offset:][: len(own)],  # padding at the end is left out
            state_key=flat if parameter.requires_grad else None,
            state_offset=offset,
        )

    def range_of(self, parameter: Any, rank: int) -> range:
        if self._stage == 3:
            size, each, first = parameter.ds_numel, parameter.ds_tensor.numel(), 0
        else:
            flat, first = self._flat_groups[parameter]
            size, each = parameter.numel(), flat.numel()
        start = rank * each - first
        return range(size)[max(0, start) : max(0, start + each)]

    @cached_property
    def _flat_groups(self) -> dict[Tensor, tuple[Tensor, int]]:
        return flat_groups(self.zero)

    def write_back(self) -> None:
        # After the engine's own functions that set a value (safe_set_full_fp32_param), the model
        # computes with stale copies until the next step.
        if self._stage == 3:
            copy_to_model_stage_3(self.zero)
            gather_persistent(self.zero)
        else:
            self.zero.update_lp_params()
        self.writes += 1

    def full_tensor(self, parameter: nn.Parameter) -> Tensor:
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        if parameter.requires_grad:
            return safe_get_full_fp32_param(parameter)  # type: ignore[no-any-return]
        with deepspeed.zero.GatheredParameters([parameter]):  # only stage 3 has to gather
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
        scaler.cur_iter = state["good_steps"]
        scaler.last_overflow_iter = -1
        scaler.cur_hysteresis = state.get("hysteresis", scaler.cur_hysteresis)

    def close(self) -> None:
        self.engine.destroy()
        super().close()


def engine_config(plan: Plan) -> dict[str, Any]:
    """Return DeepSpeed's configuration with every value set: no ``auto``, and no engine default."""
    config = {
        # torch's fused AdamW steps offloaded state as well, with the numbers of no offload.
        "zero_force_ds_cpu_optimizer": False,
        **copy.deepcopy(dict(plan.deepspeed)),
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.accumulation_steps,
        # The engine counts each process, also those that share rows.
        "train_batch_size": plan.global_batch_size * plan.context_parallel,
        # Left out, Accelerate fills in 1.0 and clips silently.
        "gradient_clipping": plan.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        # In full precision, as under DDP, unless the config says otherwise.
        "communication_data_type": "bf16" if plan.reduce_dtype == "bf16" else "fp32",
    }

    # For float32 beside bf16 in stage 1 the engine takes another optimizer, of another layout. So
    # the configuration has the compute dtype in stage 1, and ``prepare`` sets float32.
    kind = "compute" if config["zero_optimization"]["stage"] == 1 else "gradients"
    config.setdefault("data_types", {})["grad_accum_dtype"] = plan.precision[kind]

    # The engine's clock would wait for the device before and after each forward pass and step.
    config.setdefault("timers", {}).setdefault("throughput", {}).setdefault("enabled", False)

    for dtype in ("bf16", "fp16"):
        config.setdefault(dtype, {})["enabled"] = plan.mixed_precision == dtype
    return config
