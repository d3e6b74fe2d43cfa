"""Which models can be divided by layers, and the norm of gradients that lie over different ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from brought_language import hugging_face
from origins import origin
from plans import plan, refusal, request
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from trainer.strategies.fsdp import FSDP2
from trainer.strategies.tensor_parallel import problem_of
from trainer.strategies.tensors import clip, total_norm

SMALL = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 32}


def model(kind: str, heads: int = 4, **settings: Any) -> nn.Module:
    sizes = {**SMALL, "num_attention_heads": heads, "num_key_value_heads": heads, **settings}
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**sizes))


def test_models_of_transformers_with_a_plan_can_be_divided() -> None:
    for kind in ("llama", "mistral", "qwen2"):
        assert problem_of(model(kind), 2) == ""
        assert problem_of(model(kind, tie_word_embeddings=True, vocab_size=41), 4) == "", (
            "these stay whole"
        )


def test_models_that_cannot_be_divided_are_refused_with_the_reason() -> None:
    assert problem_of(nn.Linear(2, 2), 2).startswith(
        "Linear has no plan by which its layers are divided"
    )
    assert problem_of(hugging_face("gpt2")(), 2).startswith("GPT2LMHeadModel has no plan")
    assert problem_of(model("llama"), 3) == (
        "LlamaForCausalLM cannot be divided over 3 ranks: num_attention_heads is 4, not a multiple of 3, "
        "num_key_value_heads is 4, not a multiple of 3, model.layers.0.mlp.gate_proj has 32, not a multiple of 3 "
        "(and 2 more)"
    )
    narrow = model("llama", num_key_value_heads=1)
    assert problem_of(narrow, 2).endswith(
        "over 2 ranks: num_key_value_heads is 1, not a multiple of 2"
    )
    assert "self_attn.q_norm is to be 'replicated_with_grad_allreduce'" in problem_of(
        model("qwen3"), 2
    )


def test_a_model_with_adapters_is_refused() -> None:
    pytest.importorskip("peft")
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        hugging_face("llama")(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    assert "PeftModelForCausalLM has no plan" in problem_of(adapted, 2)


def test_compile_and_fp16_are_refused_beside_tensor_parallelism() -> None:
    """What no model has a part in is known before one is built."""
    asks = request("fsdp", fsdp={"tp_size": 2}, origins={"fsdp.tp_size": origin("a.yaml:6 (tp)")})
    assert refusal(lambda: plan(asks, compile=True, mixed_precision="fp16")).splitlines() == [
        "train.yaml:7: compile: true: not supported beside tp_size 2; leave it out",
        "train.yaml:7: mixed_precision: 'fp16': not supported beside tp_size 2; take bf16",
    ]
    assert not FSDP2.model_problems(plan(asks, mixed_precision="bf16"), model("llama"))
    [problem] = FSDP2.model_problems(plan(asks), model("llama", heads=1))
    assert str(problem).startswith(
        "a.yaml:6: tp: 2: LlamaForCausalLM cannot be divided over 2 ranks: num_attention"
    )


@pytest.fixture
def process_group() -> Iterator[None]:
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_norm_and_clipping_take_gradients_of_different_meshes(process_group: None) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shard", "tensor"))
    drawn = [torch.randn(4, 6) for _ in range(3)]
    mixed = [
        distribute_tensor(drawn[0].clone(), mesh, [Shard(0), Shard(1)]),
        distribute_tensor(drawn[1].clone(), mesh["shard"], [Shard(0)]),
        drawn[2].clone(),
    ]
    with pytest.raises(RuntimeError):  # which is why there are functions of our own
        nn.utils.get_total_norm(mixed)
    plain = [nn.Parameter(torch.zeros(4, 6)) for _ in drawn]
    for parameter, gradient in zip(plain, drawn, strict=True):
        parameter.grad = gradient.clone()
    norm = total_norm(mixed)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain, 0.5))
    clip(mixed, 0.5, norm)
    for gradient, parameter in zip(mixed, plain, strict=True):
        assert parameter.grad is not None
        found = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        torch.testing.assert_close(found, parameter.grad)
