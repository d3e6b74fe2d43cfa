"""Private attributes of Accelerate: a release that removes one is named here."""

from __future__ import annotations

from accelerate import Accelerator, PartialState, __version__
from accelerate.state import AcceleratorState, GradientState
from torch import nn

from trainer.private import accelerate as private_accelerate

ACCELERATE = f"accelerate {__version__}"


def test_settings_of_an_earlier_accelerator_are_forgotten() -> None:
    for state in (AcceleratorState, GradientState):
        assert hasattr(state, "_reset_state"), f"{ACCELERATE} has no {state.__name__}._reset_state"
    Accelerator(cpu=True, gradient_accumulation_steps=3)
    private_accelerate.forget_states()
    assert Accelerator(cpu=True).gradient_accumulation_steps == 1


def test_whether_this_process_is_connected_is_read_without_connecting_it() -> None:
    assert hasattr(PartialState, "_shared_state"), f"{ACCELERATE} has no PartialState._shared_state"
    private_accelerate.forget_states()
    assert not private_accelerate.is_connected()
    assert not private_accelerate.is_connected()
    PartialState(cpu=True)
    assert private_accelerate.is_connected()


def test_models_that_were_registered_are_forgotten() -> None:
    accelerator = Accelerator(cpu=True)
    assert hasattr(accelerator, "_models"), f"{ACCELERATE} has no Accelerator._models"
    private_accelerate.register_model(accelerator, nn.Linear(1, 1))
    assert len(accelerator._models) == 1
    accelerator.free_memory()
    assert accelerator._models == []
