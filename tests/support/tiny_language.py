"""Tiny language models with a tokenizer trained on the spot, as people download them, and texts."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 320
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL, "num_key_value_heads": 1},
    "qwen2": {"model_type": "qwen2", **SMALL, "num_key_value_heads": 1},
    "gemma": {"model_type": "gemma", **SMALL, "num_key_value_heads": 1, "head_dim": 16},
    "mixtral": {"model_type": "mixtral", **SMALL, "num_key_value_heads": 1, "num_local_experts": 4},
    "gpt2": {
        "model_type": "gpt2",
        **{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
}
# An encoder without dropout, which draws other numbers on every layout.
BERT: dict[str, Any] = {
    **{"model_type": "bert", **SMALL},
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
}
# As ChatML, once with the marks that say what the assistant writes, once without.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def paragraphs(count: int) -> list[str]:
    """English prose that comes with Python."""
    texts = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).split("\n\n")
    return [text.strip() for text in texts if len(text) > 40][:count]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(paragraphs(200), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", chat_template=MARKED
    )


def save_model(
    folder: Path, name: str = "llama", *, shard_size: str = "5GB", **settings: Any
) -> Path:
    """Save a model with random weights and its tokenizer; returns the folder."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = {**CONFIGS[name], "vocab_size": VOCABULARY, **settings}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING[config.pop("model_type")](**config)
    )
    model.save_pretrained(folder, max_shard_size=shard_size)
    tokenizer().save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, **more: Any) -> Path:
    """Save an adapter as peft writes it, every value of which was drawn; returns the folder."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"r": 3, "lora_alpha": 9, "target_modules": ["q_proj", "up_proj"]}
    loaded: Any = AutoModelForCausalLM.from_pretrained(base)
    model: Any = get_peft_model(loaded, LoraConfig(**how, **more, task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


def save_masked(folder: Path) -> Path:
    """Save a small BERT that predicts hidden words, and a tokenizer with a token that hides one."""
    import torch
    from transformers import AutoModelForMaskedLM, BertConfig

    torch.manual_seed(0)
    settings = {key: value for key, value in BERT.items() if key != "model_type"}
    model: Any = AutoModelForMaskedLM.from_config(BertConfig(**settings, vocab_size=VOCABULARY))
    model.save_pretrained(folder)
    own = tokenizer()
    own.add_special_tokens(
        {"mask_token": "<|im_start|>", "pad_token": "<|end|>", "sep_token": "<|im_end|>"}
    )
    own.save_pretrained(folder)
    return folder


def save_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_texts(path: Path, count: int = 120) -> Path:
    """JSON lines with a column ``text``."""
    return save_rows(path, [{"text": text} for text in paragraphs(count)])


def language_settings(
    folder: Path, *, sequence_length: int = 96, texts: int = 120, **model: Any
) -> dict[str, Any]:
    """Settings of a language task, whose model and texts are made in a folder."""
    if not (folder / "llama").exists():
        save_model(folder / "llama", **model)
        save_texts(folder / "texts.jsonl", texts)
    return {
        "model": str(folder / "llama"),
        "data": str(folder / "texts.jsonl"),
        "cache_dir": str(folder / "cache"),
        "sequence_length": sequence_length,
    }


def conversation(*turns: str) -> dict[str, Any]:
    """A row of turns that user and assistant take."""
    messages = []
    for number, text in enumerate(turns):
        messages.append({"role": ("user", "assistant")[number % 2], "content": text})
    return {"messages": messages}


def read_rows(name: str | list[str]) -> list[Any]:
    """All rows of what a setting names."""
    from trainer.language.sources import find_sources

    return [row for source in find_sources(name, "data") for _, row in source.read()]


def build_with_batch(task: Any) -> tuple[Any, Any]:
    """The model of a task, with values, and a batch of its first two rows."""
    import torch
    from whole_model import build_whole

    torch.manual_seed(0)
    model = build_whole(task)
    data = task.build_data()
    return model.train(), data.collate([data.train[0], data.train[1]])


def change_config(folder: Path, **values: Any) -> Path:
    """Change keys of a model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the tensors of a model's file again, changed."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
