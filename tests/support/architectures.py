"""Tiny models of many architectures, saved as people download them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_language import tokenizer

WORDS = 336  # more than the tokenizer has, with what some models' own tokenizers add
SHAPE: dict[str, Any] = {
    **{
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
    },
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 32},
    **dict.fromkeys(
        ("hidden_dropout", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0
    ),
}
OLDER: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
FEW = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
LINEAR = {
    **{"linear_num_value_heads": 2, "linear_num_key_heads": 2},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "first_k_dense_replace": 1},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
}

# With experts: what is theirs beside the shape.
EXPERTS: dict[str, dict[str, Any]] = {
    "olmoe": FEW,
    "mixtral": LOCAL,
    "qwen3_moe": {**FEW, "moe_intermediate_size": 32},
    "deepseek_v3": {**ROUTED, **LATENT, "moe_intermediate_size": 32},
    "glm4_moe": {**ROUTED, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    "dots1": {**ROUTED, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    "minimax": LOCAL,
    "qwen3_next": {
        **FEW,
        **LINEAR,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen2_moe": {**FEW, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    "granitemoe": LOCAL,
    "gpt_oss": LOCAL,
    "llama4_text": {"num_local_experts": 4, "intermediate_size_mlp": 64, "num_experts_per_tok": 1},
    "phimoe": LOCAL,
    "jamba": {"num_experts": 2},
}
# The families that most people tune.
FAMILIES: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "phi3", "smollm3")
    },
    "gpt2": OLDER,
}
LIKE_THEM = """
    gpt_neox stablelm starcoder2 cohere cohere2 olmo olmo2 glm glm4 nemotron granite phi gemma gemma2 ministral exaone4
    ernie4_5 hunyuan_v1_dense lfm2 bitnet helium apertus seed_oss arcee
"""
OTHERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in LIKE_THEM.split()},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "falcon": {"num_kv_heads": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1},
    "codegen": {**OLDER, "rotary_dim": 4},
    "gptj": {**OLDER, "rotary_dim": 4},
    "bloom": OLDER,
}
# With a vision part, whose settings are these. Those of the text part follow.
SEEING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        {
            **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        },
        {},
    ),
    "qwen3_5": (
        {
            **{"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2},
            **{"out_hidden_size": 32, "deepstack_visual_indexes": []},
        },
        {"layer_types": ["full_attention"] * 2},
    ),
}
ARCHITECTURES = {**EXPERTS, **FAMILIES, **OTHERS, **{name: SEEING[name][1] for name in SEEING}}


def save_architecture(folder: Path, name: str) -> Path:
    """Save a model whose every value was drawn, and a tokenizer; returns the folder."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    whole: Any = CONFIG_MAPPING[name]
    kind = whole.sub_configs["text_config"] if name in SEEING else whole
    settings = {**SHAPE, **ARCHITECTURES[name], "vocab_size": WORDS}
    known = {*kind().to_dict(), *kind.attribute_map} | ARCHITECTURES[name].keys()
    words = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    config = kind(**words, **{key: value for key, value in settings.items() if key in known})
    torch.manual_seed(0)
    model: Any
    if name in SEEING:
        config = whole(text_config=config, vision_config=SEEING[name][0])
        model = AutoModelForImageTextToText.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # what begins as ones or zeros could not be told from a new one
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
