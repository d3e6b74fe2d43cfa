"""ZeRO stages 1, 2 and 3 on DeepSpeed's engine.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
DeepSpeed is imported only where one of these strategies runs (3 s).
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
from .adapters import set_by_adapters
from .base import Shard, StepResult, Strategy, compute_in
from .buffers import keep_buffers_fp32
from .deepspeed_start import engine_start, prepare_process
from .gradient_order import GradientOrder
from .meta_device import Made, allocate, is_on_meta, renew
from .optimizer_probe import divided_step_problem
from .tensors import canonical_state, hold_scalars_as_vectors, keep_in_step, local_bytes

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..plan import Plan

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ZeRO(Strategy):
    """Optimizer state (1), gradients (2) and parameters (3) divided over the ranks."""

    held = "flat slices of all parameters"

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

        # DeepSpeed calls collectives by names that torch 2.13 renamed; one line a call on every
        # rank.
        warnings.filterwarnings(
            "ignore", r".*is deprecated. Please use `torch.distributed.*_single`", FutureWarning
        )
        return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=engine_config(plan))}

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        super().__init__(plan, accelerator)
        # Accelerate puts the configuration where transformers finds it, whatever zero3_init_flag
        # says: from_pretrained and from_config would then give parameters that are divided already,
        # of shape [0].
        accelerator.state.deepspeed_plugin.dschf = None
        self._order: GradientOrder | None = None  # one process has no need of it
        self._window = contextlib.ExitStack()

    @classmethod
    def optimizer_problem_alone(cls, plan: Plan, optimizer: Optimizer) -> str:
        if problem := super().optimizer_problem_alone(plan, optimizer):
            return problem
        device = torch.device("cpu" if cls.steps_on_cpu(plan) else plan.device)
        problem = divided_step_problem(optimizer, device, _slices)
        return problem and f"each process holds {cls.held} here, and {problem}"

    def divide(self, tensors: list[Tensor]) -> list[Tensor]:
        return _slices(tensors)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        hold_scalars_as_vectors(model)
        if self.plan.strategy == "zero3":
            self._partition(model, optimizer)
            keep_in_step(model)
            # In evaluation torch's encoder layers would read the weights of layers inside, which
            # nobody has gathered.
            torch.backends.mha.set_fastpath_enabled(False)
        with engine_start(model):
            super().wrap(model, optimizer)

    def _partition(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Divide the parameters over the ranks, one at a time: the engine would put the model on
        each device first.
        """
        import deepspeed

        # Of a module without parameters it takes the settings only; given the model it would not
        # cast what it divides.
        config = self.accelerator.state.deepspeed_plugin.deepspeed_config
        init: Any = deepspeed.zero.Init(module=nn.Module(), config_dict_or_path=config)
        made: Made = {}
        for module in model.modules():
            allocate([module], self.accelerator.device, made)
            for parameter in module.parameters(recurse=False):
                if not hasattr(parameter, "ds_id"):  # a shared one is divided already
                    if parameter.is_floating_point():
                        parameter.data = parameter.data.to(init.dtype)
                    init._convert_to_zero_parameters([parameter])
        renew(optimizer, made)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self.accelerator.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        from deepspeed.utils.z3_leaf_module import set_z3_leaf_module

        put_back = keep_buffers_fp32(model)
        precision = self.plan.precision
        dtype = None if self.plan.mixed_precision == "no" else DTYPES[self.plan.mixed_precision]
        # The engine casts the model and starts from what that leaves: until then the weights stay
        # in host memory.
        rounded = dtype is not None and not is_on_meta(model)
        built = (
            {name: tensor.detach() for name, tensor in canonical_state(model)} if rounded else {}
        )
        # A bucket of the default 5e8 gradients is 2 GB also for a model of a thousand.
        zero = self.accelerator.state.deepspeed_plugin.deepspeed_config["zero_optimization"]
        zero.setdefault(
            "reduce_bucket_size", min(500_000_000, sum(p.numel() for p in model.parameters()))
        )
        if self.plan.find_unused_parameters:
            # A layer that one rank leaves out cannot be gathered by the others: all are gathered
            # together, and stay.
            zero["stage3_param_persistence_threshold"] = sys.maxsize
            set_z3_leaf_module(model, True)
        super().prepare(model, optimizer)
        engine: Any = self.model
        self.engine, self.zero = engine, engine.optimizer
        if hasattr(
            engine.module, "config"
        ):  # what a task asks for; the engine's own was read while it started
            engine.config = engine.module.config
        self.optimizer = (
            engine.basic_optimizer
        )  # the torch optimizer inside, which holds the groups
        if self.plan.strategy == "zero1" and precision["gradients"] != precision["compute"]:
            self.zero.gradient_accumulation_dtype = DTYPES[precision["gradients"]]
            self.zero.use_separate_grad_accum = self.zero.use_grad_accum_attribute = True
        # Its backward pass begins with the loss, not where a gradient first passes the model's
        # output: a task may take gradients itself (torch.autograd.grad), which the engine would
        # divide by the accumulation, and end the pass.
        self._begin_backward = engine._backward_prologue
        engine._backward_prologue, engine._backward_prologue_per_tensor = (
            (lambda: None),
            (lambda gradient: gradient),
        )
        self._gather_persistent()
        if self.plan.find_unused_parameters:
            for hook in getattr(self.zero, "_leaf_module_hooks", ()):
                # they would look for missing gradients before those of the model have come
                hook.remove()
        elif self.accelerator.num_processes > 1:
            reduce = (
                "reduce_ready_partitions_and_remove_grads"
                if self.plan.strategy == "zero3"
                else "process_gradients"
            )
            self._order = GradientOrder(
                dict(self.parameters()), getattr(self.zero, reduce), gather_object
            )
            setattr(self.zero, reduce, self._order.take)
            self.zero.register_grad_acc_post_hook(self._order.take_rest)
        if dtype is not None:
            put_back(self.accelerator.device)
            self.fill(built.items())
            compute_in(
                engine.module, dtype
            )  # the engine casts the model, and leaves its inputs as they are
        self._temporary = self._copies_of_the_engine()

    def _copies_of_the_engine(self) -> list[tuple[str, nn.Parameter]]:
        """List the parameters whose full-precision values are the engine's, by name."""
        set_anew = {id(parameter) for parameter in set_by_adapters(self.engine.module).values()}
        # Frozen ones are whole, and the values themselves, but in stage 3.
        trainable = None if self.plan.strategy == "zero3" else True
        named = self.parameters(trainable=trainable)
        return [(name, parameter) for name, parameter in named if id(parameter) not in set_anew]

    def temporary_parameters(self) -> Sequence[tuple[str, nn.Parameter]]:
        return self._temporary

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        # The engine has switches of its own to set.
        self.model.compile(backend=settings.pop("backend"), compile_kwargs=settings)

    def verify(self) -> None:
        stage = self.engine.zero_optimization_stage()
        if type(self.engine).__name__ != "DeepSpeedEngine" or stage != STAGES[self.plan.strategy]:
            raise LaunchError(
                f"asked for {self.plan.strategy}, but {type(self.engine).__name__} runs stage {stage}"
            )
        clip = self.engine.gradient_clipping()
        if clip != (self.plan.max_grad_norm or 0.0):
            raise LaunchError(
                f"asked for max_grad_norm {self.plan.max_grad_norm}, but the engine clips at {clip}"
            )

    @contextlib.contextmanager
    def micro_step(self, *, boundary: bool) -> Iterator[None]:
        # The engine counts micro-batches by itself, which is wrong for a short last window: the
        # boundary is ours.
        self.engine.set_gradient_accumulation_boundary(boundary or self.plan.find_unused_parameters)
        if not self.plan.find_unused_parameters:
            yield
            return
        if self.plan.strategy == "zero3":
            for parameter in self.zero.persistent_parameters:
                parameter.ds_active_sub_modules.add(
                    -1
                )  # in use: released by the step only, not after each layer
        # Ranks may use different parameters: gradients wait, whole, and are reduced in a fixed
        # order at the end.
        if not self.engine.inside_no_sync_ctxt:
            self._window.enter_context(self.engine.coalesce_grad_reduction())
        yield
        if boundary:
            self._fill_gradients()
            self._window.close()

    def _fill_gradients(self) -> None:
        """Give zeros to the parameters that this rank's micro-batches did not reach."""
        for _, parameter in self.parameters():
            if parameter.grad is None and getattr(parameter, "grad_accum", None) is None:
                shape, kept = getattr(parameter, "ds_shape", parameter.shape), parameter.data
                parameter.data = kept.new_empty(
                    shape
                )  # torch wants the gradient in the parameter's shape
                parameter.grad = torch.zeros_like(parameter)
                parameter.data = kept

    def backward(self, loss: Tensor) -> None:
        if self._order:
            self._order.begin(loss)
        loss.register_hook(lambda gradient: self._begin_backward())  # type: ignore[no-untyped-call]
        # The loss carries its exact weight already; the engine would divide by the accumulation
        # steps once more.
        self.engine.backward(loss, scale_wrt_gas=False)
        self.fingerprint = self._order.fingerprint if self._order else 0

    def finish_step(self) -> StepResult:
        # Accelerate steps the engine inside backward; on its own, code can run between the two. In
        # every precision it makes no step with a gradient that is not finite, and says that its
        # norm is infinite.
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        skipped = self.plan.mixed_precision == "fp16" and bool(
            getattr(self.zero, "overflow", False)
        )
        if not isinstance(norm, Tensor):
            norm = torch.full(
                (), float("nan") if norm is None else float(norm), device=self.accelerator.device
            )
        return StepResult(grad_norm=norm, skipped=skipped)

    def shard(self, name: str, parameter: Any) -> Shard | None:
        zero, learns = self.zero, parameter.requires_grad
        if self.plan.strategy == "zero3":
            flat, state_key, offset = parameter.ds_tensor.data, None, 0
            if learns:
                flat, group = zero._get_fp32_opt_state_partition(
                    parameter, release_swap_buffers=False
                )
                state_key = zero.fp32_partitioned_groups_flat[group]
                _, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
            # Slices of ceil(numel / world); the last one is padded, and the padding is not ours to
            # show.
            start = min(self.accelerator.process_index * flat.numel(), parameter.ds_numel)
            values = flat[: max(0, min(flat.numel(), parameter.ds_numel - start))]
            return Shard(
                name=name, start=start, tensor=values, state_key=state_key, state_offset=int(offset)
            )
        if not learns:
            return self.replicated(name, parameter.data)
        if (mapping := parameter._hp_mapping) is None:
            return None
        return Shard(
            name=name,
            start=mapping.lp_fragment_address.start,
            tensor=mapping.hp_fragment.view(-1),
            state_key=zero.single_partition_of_fp32_groups[mapping.param_group_index],
            state_offset=mapping.hp_fragment_address.start,
        )

    def scaler_state(self) -> dict[str, float]:
        scaler = self.zero.loss_scaler
        if not scaler.dynamic:
            return {}
        good = scaler.cur_iter - scaler.last_overflow_iter - 1
        return {"scale": scaler.cur_scale, "good_steps": good, "hysteresis": scaler.cur_hysteresis}

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        scaler = self.zero.loss_scaler
        if scaler.dynamic and state:
            scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = (
                state["scale"],
                int(state["good_steps"]),
                -1,
            )
            scaler.cur_hysteresis = int(state.get("hysteresis", scaler.cur_hysteresis))

    def write_back(self) -> None:
        # DeepSpeed computes with copies; its own setters leave them stale until the next step.
        if self.plan.strategy != "zero3":
            self.zero.update_lp_params()
        # as its own step does: small parameters stay whole between steps, are let go first and
        # fetched again
        else:
            self.zero._partition_all_parameters()
            for group in range(len(self.zero.fp32_partitioned_groups_flat)):
                self.zero._reassign_or_swap_out_partitioned_parameters(group)
            self._gather_persistent()
        self.writes += 1

    def _gather_persistent(self) -> None:
        """Fetch the small parameters that stay whole; by all ranks together, before any of them
        leaves a layer out.
        """
        kept = self.zero.persistent_parameters if self.plan.strategy == "zero3" else []
        if kept:
            kept[0].all_gather(kept)

    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        if parameter.requires_grad:
            whole = safe_get_full_fp32_param(parameter)
            assert isinstance(whole, Tensor), f"no full-precision copy of {name}"
            return whole
        with deepspeed.zero.GatheredParameters([parameter]):  # whole already but under ZeRO-3
            return parameter.data.clone()

    def state_bytes(self) -> int:
        # Stage 3 keeps slices of all parameters, beside the small ones that stay whole. With
        # offload the optimizer's gradients are there from the start, and in stages 1 and 2 what
        # goes back to the device.
        beside = [getattr(parameter, "ds_tensor", None) for parameter in self.model.parameters()]
        beside += [
            key.grad for key in {shard.state_key for shard in self.shards()} if key is not None
        ]
        beside += getattr(self.zero, "param_buffer_of_bit16_for_cpu_offload_groups", [])
        return super().state_bytes() + local_bytes(
            tensor for tensor in beside if tensor is not None
        )

    def gradient_bytes(self) -> int:
        kept: list[Any] = self.trainable
        apart = (
            self.plan.precision["gradients"] != self.plan.precision["compute"]
        )  # in a buffer for this rank's part
        if self.plan.strategy == "zero3":
            kept = [parameter.ds_tensor for parameter in kept]
        elif self.plan.strategy == "zero2" and apart:
            kept = [shard.tensor for shard in self.shards()]
        elif (
            self.plan.strategy == "zero2"
        ):  # whole, also those that lie across a border between two ranks
            kept = [parameter for parameter in kept if parameter._hp_mapping is not None]
        elements: int = sum(tensor.numel() for tensor in kept)
        return elements * DTYPES[self.plan.precision["gradients"]].itemsize

    def close(self) -> None:
        self.engine.destroy()
        super().close()


def _slices(tensors: list[Tensor]) -> list[Tensor]:
    """Cut a flat group of tensors as the engine does for two ranks: within a row."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return list(torch.split(flat, len(flat) // 2))


def engine_config(plan: Plan) -> dict[str, Any]:
    """Return the DeepSpeed configuration with nothing left to guess: no ``auto``, no value that
    stands twice.
    """
    config = copy.deepcopy(dict(plan.deepspeed))
    zero = config.setdefault("zero_optimization", {})
    assert zero.get("stage") == STAGES[plan.strategy], "the reader of launch files sets the stage"
    if STAGES[plan.strategy] == 3:
        zero.setdefault("stage3_gather_16bit_weights_on_model_save", True)
    config |= {
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.accumulation_steps,
        "train_batch_size": plan.global_batch_size,
        # Left out, Accelerate fills in 1.0 and clips without a word.
        "gradient_clipping": plan.max_grad_norm or 0.0,
        "zero_allow_untested_optimizer": True,
    }
    # Asked for float32 beside bf16 in stage 1, it takes another optimizer, of another layout:
    # ``prepare`` sets it then.
    added_up_in = plan.precision["compute" if plan.strategy == "zero1" else "gradients"]
    config.setdefault("data_types", {})["grad_accum_dtype"] = added_up_in
    # Its own clock would wait for the device before and after each forward pass and step.
    config.setdefault("timers", {}).setdefault("throughput", {}).setdefault("enabled", False)
    # torch's fused AdamW serves offloaded state as well, and gives the same numbers as without
    # offload.
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    for dtype in ("bf16", "fp16"):
        config[dtype] = {**config.get(dtype, {}), "enabled": plan.mixed_precision == dtype}
    if plan.mixed_precision != "no":
        # Gradients are exchanged in full precision, as DDP does it.
        config.setdefault("communication_data_type", "fp32")
    return config
