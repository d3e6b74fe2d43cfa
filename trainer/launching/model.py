"""Names of modules in launch files, held against a model that is built but not prepared yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..text import did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from ..plan import Plan


def model_problems(plan: Plan, model: nn.Module) -> Iterator[str]:
    """Yield a line for each class to wrap that the model does not have, and for ignored modules that match none."""
    arguments = plan.fsdp
    if not arguments:
        return
    known = {type(module).__name__ for module in model.modules()}
    if arguments["auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP":
        asked, own = arguments["transformer_cls_names_to_wrap"], getattr(model, "_no_split_modules", None)
        own_name = f"{type(model).__name__}._no_split_modules"
        origin = plan.origin("fsdp.transformer_cls_names_to_wrap") if asked else own_name
        for name in asked or own or ():
            if name not in known:
                yield f"{origin}: {name!r}: the model has no module of this class; {did_you_mean(name, known)}"
    pattern = arguments["ignored_modules"]
    if pattern:
        names = [name for name, _ in model.named_modules() if name]
        at = plan.origin("fsdp.ignored_modules")
        try:
            matched = any(re.fullmatch(pattern, name) for name in names)
        except re.error as error:
            yield f"{at}: {pattern!r}: not a regular expression: {error}"
        else:
            if not matched:
                yield f"{at}: {pattern!r}: matches the name of no module, such as {names[0] if names else 'none'!r}"
