"""Settings of small fine-tunes, whose models and rows are made when they are first named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from preferences import save_preferences
from tiny_language import (
    change_tensors,
    conversation,
    paragraphs,
    save_adapter,
    save_masked,
    save_model,
    save_rows,
    save_texts,
)

# SmolLM2-135M, cut to two of its thirty layers and to few words: tied, three query heads to each of
# keys and values.
SMOLLM2 = {
    **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "rms_norm_eps": 1e-5},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXTS = paragraphs(80)
NUMBERS = range(48)


def pair_of_texts(number: int, label: Any) -> dict[str, Any]:
    return {"text": TEXTS[number][:60], "other": TEXTS[-1 - number][:40], "label": label}


def tokens(number: int) -> dict[str, Any]:
    """A row of tokens, of which the first are not learnt."""
    ids = [(3 + number * number + 7 * place) % 320 for place in range(9 + number)]
    return {"input_ids": ids, "labels": [-100] * (number % 5) + ids[number % 5 :]}


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "chats.jsonl": lambda at: conversation(TEXTS[at][:60], TEXTS[-1 - at]),
    "labels.jsonl": lambda at: {"text": TEXTS[at][:200], "label": "the" in TEXTS[at][:40]},
    # Long prompts: of many rows the first half has no target.
    "prompts.jsonl": lambda at: {
        "prompt": TEXTS[at][: 300 * (at % 4)],
        "completion": TEXTS[-1 - at][:40],
    },
    "several.jsonl": lambda at: pair_of_texts(at, ["first", "second"][: at % 3]),
    "numbers.jsonl": lambda at: pair_of_texts(at, at / 9 - 1),
    "tokens.jsonl": tokens,
    "words.jsonl": lambda at: {"text": f"<|think|>{TEXTS[at]}<|done|>"},
}
MODELS: dict[str, Callable[[Path], object]] = {
    "llama": save_model,
    "four heads": lambda path: save_model(path, **HEADS),
    "mixtral": lambda path: save_model(path, "mixtral"),
    "gpt2": lambda path: save_model(path, "gpt2"),
    "smollm2": lambda path: save_model(path, **SMOLLM2),
    "bert": save_masked,
    "lora": lambda path: save_adapter(Path(given("llama", path.parents[1])), path),
    "scaled": lambda path: change_tensors(
        save_model(path), lambda found: [tensor.mul_(1.05) for tensor in found.values()]
    ),
    "texts.jsonl": save_texts,
    "texts-2.jsonl": save_texts,
    "pairs.jsonl": lambda path: save_preferences(path, 50),
}


@cache
def given(name: str, folder: Path) -> str:
    """Return the path of a model or a file of rows."""
    path = folder / "given" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in ROWS:
        save_rows(path, [ROWS[name](number) for number in NUMBERS])
    else:
        MODELS[name](path)
    return str(path)


def task_settings(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a language task with paths for the names of what is given."""
    names = {*MODELS, *ROWS}
    made = {
        key: given(value, folder)
        for key, value in settings.items()
        if isinstance(value, str) and value in names
    }
    return {"cache_dir": str(folder / "cache"), **settings, **made}
