"""Methods that nothing calls: a misspelt name, or the name of another framework."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
import sys
from collections.abc import Collection

from ..errors import LaunchError
from ..hooks import EVENTS

# Names of Lightning and of transformers' Trainer, by the method that does the same.
_ELSEWHERE = {
    "build_optimizer": "configure_optimizers create_optimizer create_optimizer_and_scheduler",
    "build_schedule": "create_scheduler configure_schedulers lr_scheduler_step",
    "build_model": "configure_model",
    "build_data": "setup prepare_data train_dataloader val_dataloader test_dataloader "
    "get_train_dataloader get_eval_dataloader",
    "training_step": "train_step compute_loss",
    "evaluation_step": "validation_step val_step eval_step test_step",
    "prediction_step": "predict_step",
    "build_metrics": "compute_metrics",
}


def refuse_uncalled(owner: object, base: type) -> None:
    """Refuse methods of a task or callback that nothing calls, and that resemble those of ``base``.

    A method that the source text of its module calls is a helper.
    """
    known = dir(base)
    found = []
    for cls in type(owner).__mro__:
        source = ""
        with contextlib.suppress(OSError, TypeError, KeyError):  # code that was typed has no file
            source = inspect.getsource(sys.modules[cls.__module__])
        for name, value in vars(cls).items():
            if name[0] == "_" or name in known or not callable(value):
                continue
            right = _right_name(name, cls, known)
            if right and not re.search(rf"\.{name}\b", source):
                found.append(f"{name} ({right})")
    if found:
        raise LaunchError(
            f"{type(owner).__qualname__} has methods that nothing calls: {', '.join(found)}; "
            f"rename each to the method of trainer.{base.__name__}, or delete it"
        )


def _right_name(name: str, cls: type, known: Collection[str]) -> str:
    """Return the method that a name is meant for. "" for a name of the user's own."""
    for right, others in _ELSEWHERE.items():
        if name in others.split() and right in known:
            return f"here: {right}"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if near and near[0] not in vars(cls):
        return f"did you mean {near[0]}?"
    return f"the events of a trainer.Callback are {', '.join(EVENTS)}" * name.startswith("on_")
