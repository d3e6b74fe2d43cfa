"""The small Llama that both language-model trainers fine-tune: a task of this framework, which
writes its own files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from torch import nn

from trainer.language import CausalLM

from .work import SAMPLES

WORDS, LENGTH = 4096, 128
SIZES = {
    "hidden_size": 320,
    "intermediate_size": 800,
    "num_hidden_layers": 6,
    "num_attention_heads": 5,
}


def task(folder: Path, **model: object) -> CausalLM:
    return CausalLM(
        loss="plain",
        tokenizer=str(folder),
        data=str(folder / "rows.jsonl"),
        sequence_length=LENGTH,
        packing="none",
        cache_dir=str(folder / "cache"),
        **model,  # type: ignore[arg-type]
    )


def fine_tuned(folder: Path) -> CausalLM:
    """Return the task that both learn."""
    return task(folder, model=str(folder / "pretrained"))


def write(folder: Path) -> nn.Module:
    """Write a tokenizer, documents that fill a row each, and a model to start from; return the
    model.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed

    names = ["<unknown>", "<end>", *(f"w{number}" for number in range(2, WORDS))]
    tokenizer = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[1]).save_pretrained(folder)
    draw = random.Random(0)
    with open(folder / "rows.jsonl", "w") as file:
        for _ in range(SAMPLES):
            text = " ".join(names[int(2 + (WORDS - 2) * draw.random() ** 3)] for _ in range(LENGTH))
            file.write(json.dumps({"text": text}) + "\n")
    config = {
        "model_type": "llama",
        "vocab_size": WORDS,
        "bos_token_id": None,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "max_position_embeddings": LENGTH,
        **SIZES,
    }
    set_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    model.save_pretrained(folder / "pretrained")
    assert (
        len(fine_tuned(folder).build_data().train) == SAMPLES
    )  # and the tokens are kept for all processes
    return model
