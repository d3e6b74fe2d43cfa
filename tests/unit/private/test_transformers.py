"""Private names of transformers: a release that removes one is named here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from trainer.private import transformers as private_transformers

TRANSFORMERS = f"transformers {transformers.__version__}"


@pytest.fixture
def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=8,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        attn_implementation="eager",
    )


@pytest.mark.parametrize(
    "name",
    [
        "_init_weights",
        "_from_config",
        "_no_split_modules",
        "_keys_to_ignore_on_load_missing",
        "_keys_to_ignore_on_load_unexpected",
    ],
)
def test_models_have_the_attribute(name: str) -> None:
    assert hasattr(PreTrainedModel, name), f"{TRANSFORMERS} has no PreTrainedModel.{name}"


def test_a_model_gives_its_modules_first_values(config: LlamaConfig) -> None:
    model = LlamaForCausalLM(config)
    initialize = private_transformers.initializer_of(model)
    assert initialize is not None
    norm = model.model.norm
    with torch.no_grad():
        norm.weight.zero_()
    initialize(norm)
    assert norm.weight.tolist() == [1.0] * 4
    assert private_transformers.initializer_of(nn.Linear(1, 1)) is None


@pytest.mark.parametrize("model_class", [LlamaForCausalLM, AutoModelForCausalLM])
def test_models_are_built_by_the_class_of_a_task_or_of_an_architecture(
    model_class: Any, config: LlamaConfig
) -> None:
    model = private_transformers.model_from_config(model_class, config, dtype=torch.bfloat16)
    assert type(model) is LlamaForCausalLM
    assert model.lm_head.weight.dtype == torch.bfloat16


def test_a_model_names_the_classes_of_its_layers(config: LlamaConfig) -> None:
    model = LlamaForCausalLM(config)
    assert [*private_transformers.layer_classes(model)] == ["LlamaDecoderLayer"], (
        f"{TRANSFORMERS} does not name layers in _no_split_modules"
    )
    assert not [*private_transformers.layer_classes(nn.Linear(1, 1))]


def test_sharded_modules_are_run_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import fsdp

    module = nn.Linear(1, 1)
    private_transformers.mark_sharded(module)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert fsdp.is_fsdp_managed_module(module), (
        f"{TRANSFORMERS} does not read _is_fsdp_managed_module"
    )


def test_a_template_is_compiled_with_the_tags_of_transformers() -> None:
    text = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    try:
        template = private_transformers.compile_template(text)
    except ImportError:
        pytest.fail(f"{TRANSFORMERS} has no _compile_jinja_template in utils.chat_template_utils")
    assert template.render(messages=[{"content": "hello"}]) == "hello"


def test_thoughts_have_the_names_by_which_templates_ask_for_them() -> None:
    message = {"role": "assistant", "content": "4", "reasoning": "2 + 2"}
    [given] = private_transformers.with_reasoning_aliases([message])
    if given == message:
        pytest.fail(f"{TRANSFORMERS} has no _alias_reasoning_fields in utils.chat_template_utils")
    assert given["reasoning_content"] == given["thinking"] == "2 + 2"


def test_transformers_5_17_renders_messages_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.delattr(chat_template_utils, "_alias_reasoning_fields")
    message = {"role": "assistant", "content": "4", "reasoning": "2 + 2"}
    assert private_transformers.with_reasoning_aliases([message]) == [message]
