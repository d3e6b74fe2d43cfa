"""What transformers keeps to itself, and the attention of packed rows has to know.

Each as found in transformers 5.17 to 5.23; what it rests on is tested
(``tests/unit/language/test_private_transformers.py``).
"""

from __future__ import annotations

from typing import Any


def attention_of(model: Any) -> str:
    """Return the attention that a model's layers look up: what its configuration says.

    ``set_attn_implementation`` leaves it as it was, with a warning, where a class has an attention
    of its own; and nothing public tells.
    """
    return str(model.config._attn_implementation)


def supports_flash(model: Any) -> bool:
    """Return whether a model's class is made to run without a mask, by a flash kernel.

    Others may make masks that say more than who is in which document (chunks in Llama 4), which
    transformers silently leaves out for an attention that it has no mask function for.
    """
    return bool(getattr(model, "_supports_flash_attn", False))
