"""The private attributes of Accelerate that this package depends on, last seen in accelerate 1.15.

``tests/unit/private/test_accelerate.py`` names the attribute that a new release has removed.
"""

from __future__ import annotations

from typing import Any


def launch_arguments() -> set[str]:
    """Return the arguments of ``accelerate launch``.

    ``ArgumentParser._actions`` of the parser: argparse has no public list of arguments.
    """
    from accelerate.commands.launch import launch_command_parser

    return {action.dest for action in launch_command_parser()._actions}


def forget_states() -> None:
    """Make Accelerate forget the settings of an earlier ``Accelerator`` in this process.

    ``_reset_state`` of the states. The process group stays. The public ``free_memory`` and
    ``end_training`` leave the settings, or end the process group as well.
    """
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def is_connected() -> bool:
    """Return whether this process has a ``PartialState``, without making a state.

    ``PartialState._shared_state``. The public ``is_initialized`` of ``accelerate.state`` tells of
    an ``Accelerator`` only, and ``PartialState()`` would connect the process.
    """
    from accelerate import PartialState

    return bool(PartialState._shared_state)


def register_model(accelerator: Any, model: Any) -> None:
    """Make Accelerate treat a model as a result of ``prepare``.

    ``Accelerator._models``, which ``free_memory`` forgets. The public ``prepare_model`` would wrap
    the model again.
    """
    accelerator._models.append(model)
