"""What an optimizer does, found out by steps of a copy on small tensors, not by a list of names.

Two questions: how much state it keeps (``state_slots``), and whether stepping parts of parameters
gives the parts of a step on the whole (``divided_step_problem``), as FSDP2 and ZeRO need it. LAMB
and Adafactor take the norm of each parameter, for example; on a slice they would silently take
another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import Origin, Problem
from .tensors import full, local

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..plan import Plan

# From the whole tensors of a group to what the optimizer is given of them on this rank.
Divide = Callable[[list[Tensor]], list[Tensor]]
_Shape = tuple[tuple[int, ...], torch.dtype]

# How much the change of a divided step may differ: relative to the largest change (updates by
# element differ by some 1e-7 of it), and in units in the last place of the largest weight, which
# a small change may be lost among.
_BOUND = 1e-5
_ROUNDING = 4

# Sizes of the trial's gradients, from small to large, so that each is the largest that the
# optimizer has seen: some act above a norm only. Two steps of each make 16, for those that act
# after a warm-up.
_SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
_STEPS_OF_EACH = 2

# The learning rate of the trial: at a small one a step is lost in the rounding of the weights.
_TRIAL_RATE = 0.1

# From so many elements on some optimizers keep their state in 8 bits.
_LARGE = 4096


def fresh_copy(optimizer: Optimizer, parameters: Sequence[Sequence[Tensor]]) -> Any:
    """Return an optimizer with the same settings and no state.

    Args:
        optimizer: fresh; it is not changed.
        parameters: what the copy steps, by parameter group.
    """
    copy: Any = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)

    copy.state = defaultdict(dict)

    copy.param_groups = []
    for group, own in zip(optimizer.param_groups, parameters, strict=True):
        copy.param_groups.append({**group, "params": list(own)})
    return copy


def small_shapes(parameters: Iterable[Tensor]) -> list[_Shape]:
    """Return a small shape for each number of dimensions and dtype among parameters.

    Each number of dimensions, since some optimizers step matrices differently or alone. A scalar's
    state could not be told from one value for a whole parameter, so a vector takes its place.
    """
    kinds = dict.fromkeys((max(1, p.dim()), p.dtype) for p in parameters)
    return [((5, 3, *[2] * dimensions)[:dimensions], dtype) for dimensions, dtype in kinds]


def _large_shapes(parameters: Iterable[Tensor]) -> list[_Shape]:
    """Return a shape of 4,096 elements for each kind of parameter that has as many or more."""
    kinds = {(max(1, p.dim()), p.dtype) for p in parameters if p.numel() >= _LARGE}
    shapes: list[_Shape] = []
    for dimensions, dtype in kinds:
        shape = (_LARGE,) if dimensions == 1 else (64, 64, *[1] * (dimensions - 2))
        shapes.append((shape, dtype))
    return shapes


def stepped_copy(optimizer: Optimizer, device: torch.device) -> Any:
    """Return a copy of an optimizer after one step on small parameters of the same kinds.

    The parameters and their gradients are zero. Raises what the step raises.
    """
    small = []
    for group in optimizer.param_groups:
        tensors = []
        for shape, dtype in (*small_shapes(group["params"]), *_large_shapes(group["params"])):
            tensor = torch.zeros(shape, dtype=dtype, device=device)
            tensor.grad = torch.zeros_like(tensor)
            tensors.append(tensor)
        small.append(tensors)

    copy = fresh_copy(optimizer, small)
    copy.step()
    return copy


def state_slots(optimizer: Optimizer, device: torch.device) -> float:
    """Return how many tensors a fresh optimizer keeps beside each parameter: Adam 2, momentum 1.

    It is a mean over the parameters, weighted by their sizes, and counts bytes: state of half the
    parameter's bytes is half a tensor. 0 where a step on small parameters fails.
    """
    try:
        tried = stepped_copy(optimizer, device)
    except Exception:  # (an optimizer's step may want anything)
        return 0.0

    kept = 0.0
    elements = 0.0
    for group, small in zip(optimizer.param_groups, tried.param_groups, strict=True):
        slots = {}
        for tensor in small["params"]:
            slots[tensor.dim(), tensor.dtype] = _slots_of(tensor, tried.state[tensor])
        for parameter in group["params"]:
            elements += parameter.numel()
            kept += parameter.numel() * slots[max(1, parameter.dim()), parameter.dtype]
    return kept / elements


def _slots_of(tensor: Tensor, state: dict[str, Any]) -> float:
    """Return the bytes of a tensor's state as a multiple of its own, without single numbers."""
    slots = 0.0
    for value in state.values():
        if isinstance(value, Tensor) and value.dim():
            slots += value.nbytes / tensor.nbytes
    return slots


def divided_step_problem(optimizer: Optimizer, device: torch.device, divide: Divide) -> str:
    """Return why steps on parts are not the parts of a step; empty where they are.

    Collective if ``divide`` is.

    Args:
        optimizer: fresh; copies of it step small random tensors, one whole, one divided.
        device: where it will step.
        divide: of a group's tensors, or of their gradients.
    """
    trial = _Trial(optimizer, device, divide)
    for scale in trial.scales():
        for _ in range(_STEPS_OF_EACH):
            problem = trial.step(scale)
            if problem:
                return problem
        problem = trial.compare()
        if problem:
            return problem
    return ""


def steps_rows(optimizer: Optimizer, device: torch.device, divide: Divide) -> bool:
    """Return whether an optimizer can step the tensors within DTensors instead of these.

    Steps on a rank's rows must be the rows of a step, and its state must be numbers, or tensors of
    the parameter's shape, which are divided as the parameter is. Collective: call on every rank;
    the answer is this rank's own.

    Args:
        optimizer: fresh; copies of it step small random tensors, one whole, one divided.
        device: where it will step.
        divide: from tensors to DTensors.
    """
    trial = _Trial(optimizer, device, divide, on_rows=True)
    problems = []
    for scale in trial.scales():  # to the end, also where a rank fails: others compare with it
        for _ in range(_STEPS_OF_EACH):
            problems.append(trial.step(scale))
        problems.append(trial.compare())
    return not any(problems) and trial.keeps_state_by_element()


class _Trial:
    """Two copies of an optimizer, which step the same small tensors whole and divided.

    Args:
        optimizer, device, divide: as ``divided_step_problem`` takes them.
        on_rows: the second copy steps the tensors within DTensors.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device, divide: Divide, *, on_rows: bool = False
    ) -> None:
        self._on_rows = on_rows
        self._device = device
        self._divide = divide
        self._generator = torch.Generator().manual_seed(0)
        self._shapes = [small_shapes(group["params"]) for group in optimizer.param_groups]

        self._whole = self._random_tensors()
        self._parts = [divide([tensor.clone() for tensor in group]) for group in self._whole]
        self._on_whole = fresh_copy(optimizer, self._whole)
        self._on_parts = fresh_copy(optimizer, [self._stepped(group) for group in self._parts])
        _set_rate(self._on_whole)
        _set_rate(self._on_parts)

        # Values before the steps that are compared next: of each group whole, and put together from
        # its parts. At first they are the same.
        self._before = [(_flat(group), _flat(group)) for group in self._whole]

    def _stepped(self, parts: list[Tensor]) -> list[Tensor]:
        """Return what the second copy steps of divided tensors, or takes as their gradients."""
        if not self._on_rows:
            return parts
        return [local(part) for part in parts]

    def keeps_state_by_element(self) -> bool:
        """Return whether all state is numbers, or tensors of the shape of what is stepped."""
        wholes = [tensor for group in self._on_whole.param_groups for tensor in group["params"]]
        parts = [tensor for group in self._on_parts.param_groups for tensor in group["params"]]
        for whole, part in zip(wholes, parts, strict=True):
            of_whole = self._on_whole.state[whole]
            of_part = self._on_parts.state[part]
            if of_whole.keys() != of_part.keys():
                return False
            for key, value in of_part.items():
                if not _is_number(value) and not _have_shapes(of_whole[key], whole, value, part):
                    return False
        return True

    def _random_tensors(self) -> list[list[Tensor]]:
        """Draw tensors of the small shapes, by group."""
        groups = []
        for shapes in self._shapes:
            tensors = []
            for shape, dtype in shapes:
                drawn = torch.randn(shape, dtype=dtype, generator=self._generator)
                tensors.append(drawn.to(self._device))
            groups.append(tensors)
        return groups

    def scales(self) -> list[float]:
        """Return the sizes of gradients whose squares all dtypes can hold."""
        dtypes = {dtype for shapes in self._shapes for _, dtype in shapes}
        largest = min(torch.finfo(dtype).max for dtype in dtypes)
        return [scale for scale in _SCALES if (10 * scale) ** 2 < largest]

    def step(self, scale: float) -> str:
        """Step both copies with the same random gradients; return why one fails. Collective."""
        groups = self._random_tensors()
        stepped = [self._stepped(parts) for parts in self._parts]
        for whole, parts, gradients in zip(self._whole, stepped, groups, strict=True):
            for gradient in gradients:
                gradient.mul_(scale)
            divided = self._stepped(self._divide(gradients))
            for tensor, gradient in zip(whole, gradients, strict=True):
                tensor.grad = gradient
            for tensor, gradient in zip(parts, divided, strict=True):
                tensor.grad = gradient

        problem = _step_problem(self._on_whole, "a trial step")
        if problem:
            return problem
        return _step_problem(self._on_parts, "a step on them")

    def compare(self) -> str:
        """Return how far the changes since the last comparison differ. Collective."""
        after = []
        for whole, parts in zip(self._whole, self._parts, strict=True):
            after.append((_flat(whole), _flat(parts)))

        for group, before, now in zip(self._whole, self._before, after, strict=True):
            expected = now[0] - before[0]
            found = now[1] - before[1]
            largest = float(expected.abs().max())
            difference = float((found - expected).abs().max())

            precision = max(torch.finfo(tensor.dtype).eps for tensor in group)
            rounding = _ROUNDING * precision * float(now[0].abs().max())
            is_equal = difference <= _BOUND * largest + rounding  # not so where it is NaN
            if not is_equal:
                off = f"off by {difference:.2g} of {largest:.2g}"
                return f"a step on them is not that on the whole: in a trial it is {off}"

        self._before = after
        return ""


def _is_number(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.dim() == 0


def _have_shapes(of_whole: Any, whole: Tensor, of_part: Tensor, part: Tensor) -> bool:
    """Return whether state has the shape of what it belongs to, whole and divided."""
    whole_alike = isinstance(of_whole, Tensor) and of_whole.shape == whole.shape
    return whole_alike and of_part.shape == part.shape


def _set_rate(optimizer: Any) -> None:
    """Set the learning rate of a trial."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"] = torch.full_like(group["lr"], _TRIAL_RATE)
        else:
            group["lr"] = _TRIAL_RATE


def _step_problem(optimizer: Any, subject: str) -> str:
    """Step an optimizer and return why that fails; empty where it does not."""
    try:
        optimizer.step()
    except Exception as error:  # (an optimizer's step may want anything)
        first_line = str(error).strip().partition("\n")[0]
        return f"{subject} fails ({type(error).__name__}: {first_line})"
    return ""


def _flat(tensors: list[Tensor]) -> Tensor:
    """Return all elements of tensors, in a copy in host memory. Collective for DTensors.

    Offloaded parts are in host memory, and gathered on the device of their mesh: so what was
    stepped whole and what was divided may come from two devices.
    """
    flat = []
    for tensor in tensors:
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None:
            tensor = tensor.to(mesh.device_type)
        flat.append(full(tensor).detach().reshape(-1).cpu())
    return torch.cat(flat)


def refusal(problem: str, optimizer: Optimizer, plan: Plan, built_by: str | None) -> Problem:
    """Return the problem of an optimizer that cannot step what a strategy gives it.

    Args:
        problem: what ``optimizer_problem`` returned.
        optimizer: the optimizer.
        plan: names the optimizer where the config does.
        built_by: the method that built it; None where the config names it.
    """
    if built_by is None:
        origin = plan.origins.get("optimizer", Origin("TrainConfig")).named("optimizer")
        kind = plan.optimizer
    else:
        origin = Origin(built_by)
        kind = type(optimizer).__qualname__
    rule = f"{problem}; run it on replicas (DDP) or in one process, or take another optimizer"
    return Problem(origin=origin, value=kind, rule=rule)
