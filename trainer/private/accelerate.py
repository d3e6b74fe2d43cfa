"""The private attributes of Accelerate in use here. Last seen in accelerate 1.15."""

from __future__ import annotations

from typing import Any


def launch_arguments() -> set[str]:
    """Return the arguments of ``accelerate launch``, of which argparse has no public list."""
    from accelerate.commands.launch import launch_command_parser

    return {action.dest for action in launch_command_parser()._actions}


def forget_states() -> None:
    """Make Accelerate forget the settings of an earlier ``Accelerator``. The process group stays.

    The public ``free_memory`` and ``end_training`` leave the settings, or end the process group.
    """
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def is_connected() -> bool:
    """Return whether this process has a ``PartialState``, without making a state.

    The public ``is_initialized`` tells of an ``Accelerator`` only.
    """
    from accelerate import PartialState

    return bool(PartialState._shared_state)


def register_model(accelerator: Any, model: Any) -> None:
    """Make Accelerate treat a model as a result of ``prepare``, for ``free_memory``.

    The public ``prepare_model`` would wrap the model again.
    """
    accelerator._models.append(model)
