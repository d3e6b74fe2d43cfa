"""Parameters that were edited, frozen or replaced behind the optimizer's back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_run import fake_run, step_info
from torch import nn
from torch.nn.utils import parametrize

from trainer import LaunchError
from trainer.checkpoint.exported import ModelFile
from trainer.checks.edited import EditedParameters, refuse_replacement
from trainer.checks.parameters import TrainableSet
from trainer.strategies import Shard

WINDOW: Any = None
STEP = step_info()


class Engine:
    """A strategy whose parameters are copies of what it steps, as under ZeRO."""

    held = "slices"

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.named: list[tuple[str, nn.Parameter | None]] = list(model.named_parameters())
        self.writes = 0
        self.before_backward: Callable[[], object] = lambda: None
        self.values = {
            name: Shard(name=name, start=1, tensor=own.detach().clone().view(-1)[1:])
            for name, own in model.named_parameters()
        }

    def temporary_parameters(self) -> list[tuple[str, nn.Parameter | None]]:
        return self.named

    def parameters(self, *, trainable: bool | None) -> list[tuple[str, nn.Parameter]]:
        """Return all parameters: none is frozen."""
        return list(self.model.named_parameters())

    def shard(self, name: str, parameter: nn.Parameter) -> Shard:
        """Return the values, of which the parameters are copies."""
        return self.values[name]

    def write(self) -> None:
        """Give the parameters new values, as an engine does behind its step."""
        edit(self)
        for shard in self.values.values():
            shard.tensor.mul_(0.5)
        self.writes += 1


@torch.no_grad()
def edit(engine: Engine) -> None:
    for _, parameter in engine.named:
        if parameter is not None:
            parameter.mul_(0.5)


@pytest.fixture
def engine() -> Engine:
    return Engine(nn.Linear(2, 1))


@pytest.fixture
def run(engine: Engine) -> Any:
    return fake_run(
        strategy=engine,
        model=engine.model,
        parts=SimpleNamespace(model_file=ModelFile()),
        plan=SimpleNamespace(world_size=2, compile=False),
        config=SimpleNamespace(log_every=5),
        last_step=9,
        step=0,
    )


@pytest.fixture
def check(run: Any) -> EditedParameters:
    """A check that has seen a run begin."""
    check = EditedParameters()
    check.on_start(run)
    return check


def test_parameters_that_only_the_engine_writes_pass(
    check: EditedParameters, run: Any, engine: Engine
) -> None:
    for _ in range(3):
        check.on_window(run, WINDOW)
        check.before_update(run)
        engine.write()
        check.on_step(run, STEP)
        check.on_save(run)


def test_an_edit_in_the_forward_pass_is_found_before_the_update(
    check: EditedParameters, run: Any, engine: Engine
) -> None:
    check.on_window(run, WINDOW)
    edit(engine)
    with pytest.raises(LaunchError) as error:
        check.before_update(run)
    assert str(error.value).startswith("bias, weight: changed in place, while this strategy keeps")


@pytest.mark.parametrize("look", ["on_window", "on_save"])
@pytest.mark.parametrize("is_edit", [True, False])
def test_an_edit_behind_a_step_is_found_at_the_next_window_or_save(
    is_edit: bool, look: str, check: EditedParameters, run: Any, engine: Engine
) -> None:
    """An engine may write too: behind ``whole_parameters``, and behind an evaluation with the
    moving average.
    """
    check.on_step(run, STEP)
    if is_edit:
        edit(engine)
    else:
        engine.write()
    arguments = [WINDOW] if look == "on_window" else []
    told = pytest.raises(LaunchError, match=r"^bias, weight: changed in place")
    with told if is_edit else nullcontext():
        getattr(check, look)(run, *arguments)


def test_an_edit_behind_a_write_of_the_engine_is_found_in_the_next_step(
    check: EditedParameters, run: Any, engine: Engine
) -> None:
    engine.write()
    check.on_window(run, WINDOW)
    edit(engine)
    with pytest.raises(LaunchError):
        check.before_update(run)


@torch.no_grad()
def edit_data(engine: Engine) -> None:
    """Edit a part that this rank has, in a way that torch does not count."""
    engine.model.weight.data[0, 1].fill_(5.0)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize(
    ("look", "step", "found"),
    [
        ("on_window", 5, True),  # behind the callbacks of a logged step
        ("on_window", 6, False),
        ("on_save", 6, True),
        ("forward", 0, True),
        ("forward", 3, False),
        ("forward", 4, True),
        ("forward", 8, True),
        ("backward", 4, True),
        ("backward", 3, False),
    ],
)
def test_an_edit_of_data_is_found_in_logged_steps_and_before_saves(
    look: str, step: int, found: bool, check: EditedParameters, run: Any, engine: Engine
) -> None:
    run.step = step
    if look in ("forward", "backward"):
        check.on_window(run, WINDOW)
    edit_data(engine)
    with pytest.raises(LaunchError, match=r"^weight: changed") if found else nullcontext():
        match look:
            case "on_window":
                check.on_window(run, WINDOW)
            case "on_save":
                check.on_save(run)
            case "forward":
                engine.model(torch.ones(1, 2))
            case _:
                engine.before_backward()
    check.before_update(run)  # nothing looks any more
    engine.model(torch.ones(1, 2))


def test_parameters_that_are_not_gathered_now_do_not_count(run: Any, engine: Engine) -> None:
    [first, (name, _)] = engine.named
    engine.named = [first, (name, None)]
    check = EditedParameters()
    check.on_start(run)
    check.before_update(run)


def trained(change: Callable[[nn.Module], object], *, logged: bool = True) -> None:
    """Train a layer beside a frozen one, change the model, and look at a step."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[1].requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    run = fake_run(model=model, strategy=SimpleNamespace(trainable=trainable))
    change(model)
    TrainableSet().on_step(run, step_info(metrics={"loss": 1.0} if logged else None))


def replace_layer(model: nn.Module) -> None:
    model[0] = nn.Linear(2, 2)  # type: ignore[operator]


def test_the_parameters_of_the_beginning_pass() -> None:
    trained(lambda model: None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda model: model[0].bias.requires_grad_(False), "0.bias"),
        (lambda model: model[1].weight.requires_grad_(True), "1.weight"),
        (replace_layer, "0.bias, 0.weight"),
        (lambda model: model.append(nn.Linear(1, 1)), "2.bias, 2.weight"),
    ],
)
def test_layers_that_are_frozen_thawed_replaced_or_added_later_are_refused(
    change: Callable[[Any], object], named: str
) -> None:
    with pytest.raises(LaunchError) as error:
        trained(change)
    for name in named.split(", "):
        assert name in str(error.value)


def test_only_logged_steps_are_looked_at() -> None:
    trained(replace_layer, logged=False)


def test_a_hook_on_the_gradient_of_a_divided_parameter_is_refused() -> None:
    def add_hook(model: Any) -> None:
        model[0].weight.placements = ()  # as a DTensor has them
        model[0].weight.register_hook(lambda gradient: gradient)

    with pytest.raises(
        LaunchError, match=r"^0\.weight: a hook on its gradient would not be called"
    ):
        trained(add_hook)


def test_a_replaced_parameter_is_refused_unless_its_memory_is_the_same() -> None:
    """bitsandbytes gives a weight in 4 bits its own class again in each forward pass. peft adapts
    experts by parametrized weights, in each forward pass as well.
    """
    model = nn.Sequential(nn.Linear(2, 2))
    weight = model[0].weight
    watch = refuse_replacement(model)
    try:
        model[0].weight = nn.Parameter(weight.detach(), requires_grad=False)
        parametrize.register_parametrization(model[0], "weight", nn.Identity())
        parametrize.remove_parametrizations(model[0], "weight")
        with pytest.raises(LaunchError, match=r"^0\.weight: frozen, thawed or replaced"):
            model[0].weight = nn.Parameter(weight.detach().clone())
    finally:
        watch.remove()
