"""transformers keeps these things as its Python says."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.language.attention import VARLEN, register
from trainer.language.pretrained import from_configuration
from trainer.language.private_transformers import attention_of, supports_flash

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def build(model_type: str, **settings: Any) -> Any:
    return from_configuration({"model_type": model_type, **settings}, None, {"vocab_size": 64})


@pytest.mark.parametrize(("name", "able"), [("llama", True), ("falcon", False)])
def test_attention_of_is_what_was_set_if_the_class_can(name: str, able: bool) -> None:
    register()
    model = build(name, **SMALL)
    assert attention_of(model) == "sdpa"
    model.set_attn_implementation(VARLEN)
    assert (attention_of(model) == VARLEN) is able


def test_supports_flash_says_which_classes_run_without_a_mask() -> None:
    assert supports_flash(build("llama", **SMALL))
    assert not supports_flash(build("bloom", hidden_size=32, n_layer=1, n_head=2))
    assert not supports_flash(object())
