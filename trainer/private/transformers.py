"""The private names of transformers in use here. Last seen in transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Template

# -- models ---------------------------------------------------------------------------------------


def initializer_of(model: Any) -> Callable[[Any], object] | None:
    """Return the method by which a model gives a module first values. None without such a method.

    The public ``init_weights`` initializes a whole model. Many models that are not of transformers
    have a method ``_init_weights`` as well.
    """
    return getattr(model, "_init_weights", None)


def mark_sharded(module: Any) -> None:
    """Make ``generate`` run this module on every rank until the texts of all have ended.

    ``_is_fsdp_managed_module``, by which transformers recognizes FSDP1. Publicly ``generate`` has
    ``synced_gpus``, which each caller would have to give.

    ``torch.compile`` looks at the mark as well. Without ``_fsdp_use_orig_params`` beside the mark
    (FSDP2 sets both), the module silently stays uncompiled. Last seen in torch 2.13.
    """
    module._is_fsdp_managed_module = True
    module._fsdp_use_orig_params = True


def model_from_config(model_class: Any, config: Any, **options: Any) -> Any:
    """Build a model with random weights.

    The classes for a task (``AutoModelForCausalLM``) have a public ``from_config``, the classes of
    an architecture only ``_from_config``. Calling such a class leaves out dtype and attention.
    """
    build = getattr(model_class, "_from_config", None) or model_class.from_config
    return build(config, **options)


def layer_classes(module: Any) -> Iterable[str]:
    """Return the names of the classes that transformers and Accelerate treat as a layer."""
    return getattr(module, "_no_split_modules", None) or ()


def converts_files(model: Any) -> bool:
    """Return whether ``from_pretrained`` changed tensors or names, which nothing public tells."""
    return bool(model._weight_conversions)


def save_converted(model: Any, folder: Path) -> None:
    """Save a model under the names of its class, from whichever rank calls.

    ``save_pretrained`` of transformers 5.23 writes nothing on other ranks than 0
    (``should_save_on_this_rank``), also if the caller says that it is the main process.
    """
    model.should_save_on_this_rank = lambda is_main_process: True
    model.save_pretrained(folder, save_original_format=False, max_shard_size="2GB")


def loader_of(model: Any) -> Callable[..., Any] | None:
    """Return ``from_pretrained`` of a class of transformers. A user's may need more arguments."""
    kind: Any = type(model)
    if not kind.__module__.startswith("transformers."):
        return None
    from transformers import logging

    logging.disable_progress_bar()
    loader: Callable[..., Any] = kind.from_pretrained
    return loader


# -- chat templates -------------------------------------------------------------------------------


def compile_template(text: str) -> Template:
    """Compile a chat template as ``apply_chat_template`` does, which returns rendered text only."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template: Template = _compile_jinja_template(text)
    return template


def with_reasoning_aliases(messages: Any) -> Any:
    """Return messages with their thoughts under the names by which templates ask for them.

    ``apply_chat_template`` does so before it renders. transformers 5.17 has no such function.
    """
    from transformers.utils import chat_template_utils

    alias = getattr(chat_template_utils, "_alias_reasoning_fields", None)
    return alias(messages) if alias else messages


def attention_of(model: Any) -> str:
    """Return the name of a model's attention."""
    name: str = model.config._attn_implementation
    return name
