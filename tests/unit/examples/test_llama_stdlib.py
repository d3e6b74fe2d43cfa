"""The corpus is real, split without overlap and the same on every call; the loss means what it
says.
"""

from __future__ import annotations

import json
import math
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import words
from llama_stdlib import IGNORED, Blocks, LlamaStdlib
from torch.utils.data import default_collate

from trainer import ConfigError, DataError


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaStdlib:
    return LlamaStdlib(
        max_bytes=200_000, vocab_size=512, cache_dir=str(tmp_path_factory.mktemp("cache"))
    )


def decoded(folder: Path, part: str) -> list[str]:
    """The documents of one part as text again."""
    from tokenizers import Tokenizer

    tokens = np.load(folder / f"{part}.npy")
    documents = np.split(tokens, np.flatnonzero(tokens == 0) + 1)
    assert len(documents.pop()) == 0, "the last document is ended as well"
    return Tokenizer.from_file(str(folder / "tokenizer.json")).decode_batch(
        [text[:-1].tolist() for text in documents]
    )


# --- text


def test_stdlib_is_its_source_with_nothing_in_both_parts(llama: LlamaStdlib) -> None:
    folder = llama.prepare()
    train, evaluation = decoded(folder, "train"), decoded(folder, "evaluation")
    stdlib = Path(sysconfig.get_path("stdlib"))
    first = sorted(
        path for path in stdlib.glob("*.py") if not path.name.startswith("_sysconfigdata")
    )
    assert train[:3] == [path.read_text() for path in first[:3]], (
        "real text, and the tokenizer gives it back"
    )
    assert evaluation[0] == first[9].read_text(), "the tenth file is held out"
    assert sum(len(text.encode()) for text in train + evaluation) == 200_000
    assert not set(train) & set(evaluation)


def test_wrong_corpora_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"task_settings\.corpus: '/no/such': does not exist; give a file"
    ):
        LlamaStdlib(corpus="/no/such", cache_dir=str(tmp_path)).prepare()
    short = words(tmp_path / "short.txt", 10)
    with pytest.raises(
        DataError,
        match=r"corpus '.*short.txt': 1 pieces of 8192 characters are too few to hold one in 10 out",
    ):
        LlamaStdlib(corpus=str(short), cache_dir=str(tmp_path)).prepare()


def test_blocks_hold_each_token_once_and_mask_what_fills_the_last(tmp_path: Path) -> None:
    for size, blocks in ((8, 2), (9, 2), (10, 3)):
        np.save(tmp_path / "tokens.npy", np.arange(1, size + 1, dtype=np.uint16))
        data = Blocks(tmp_path / "tokens.npy", 4)
        assert len(data) == blocks
        labels = torch.cat([data[index]["labels"] for index in range(blocks)])
        kept = labels[labels != IGNORED].tolist()
        assert kept == list(range(1, (size if size != 9 else 8) + 1)), (
            "a single last token has no target"
        )
    assert data[2]["input_ids"].tolist() == [9, 10, 0, 0]
    assert data[2]["labels"].tolist() == [9, 10, IGNORED, IGNORED]


# --- the language model


def test_llama_loss_is_the_mean_over_unmasked_targets(llama: LlamaStdlib) -> None:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model, data = llama.build_model(), llama.build_data()
    assert isinstance(model, LlamaForCausalLM)
    batch = default_collate([data.train[0], data.train[1], data.train[len(data.train) - 1]])
    batch["labels"][1, 50:] = IGNORED
    weight = int(llama.weight(batch))
    assert weight == 127 + 49 + int((batch["labels"][2, 1:] != IGNORED).sum())
    loss = llama.training_step(model, batch)
    torch.testing.assert_close(loss, model(**batch).loss, msg="transformers shifts and masks alike")
    assert loss.item() == pytest.approx(math.log(512), abs=0.2), "a fresh model knows nothing"

    values = llama.evaluation_step(model, batch)
    total, count = values["loss"]
    assert int(count) == weight
    torch.testing.assert_close(total / count, loss)
    correct, count = values["accuracy"]
    assert int(count) == weight and 0 <= int(correct) <= weight


def test_llama_extras_are_the_tokenizer(llama: LlamaStdlib, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    llama.save_extras(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "def f(naïve):\n\treturn '→', naïve  # 日本\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (len(tokenizer), tokenizer.eos_token_id) == (512, 0)


def test_a_single_file_is_cut_into_pieces(tmp_path: Path) -> None:
    text = words(tmp_path / "text.txt", 20_000)
    folder = LlamaStdlib(corpus=str(text), vocab_size=300, cache_dir=str(tmp_path)).prepare()
    train, evaluation = decoded(folder, "train"), decoded(folder, "evaluation")
    assert (
        "".join((*train[:9], evaluation[0], *train[9:18], evaluation[1], *train[18:]))
        == text.read_text()
    )


@pytest.mark.usefixtures("hugging_face_cache")
def test_hugging_face_data_set(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number} for number in range(20)] + [
        {"text": None, "label": 0}
    ]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "corpus": f"hf:{tmp_path}/set",
        "vocab_size": 300,
        "cache_dir": str(tmp_path / "cache"),
    }
    folder = LlamaStdlib(**settings).prepare()
    assert decoded(folder, "evaluation") == ["text 9", "text 19"]
    assert decoded(folder, "train")[-1] == "text 18"
    with pytest.raises(
        ConfigError, match=r"task_settings\.column: 'txt': no such column; did you mean 'text'\?"
    ):
        LlamaStdlib(**settings, column="txt").prepare()
    with pytest.raises(
        ConfigError, match=r"task_settings\.corpus: 'hf:.*/set': cannot be loaded: .*nowhere"
    ):
        LlamaStdlib(**settings, split="nowhere").prepare()


@pytest.mark.parametrize("tied", [False, True])
def test_llama_ties_its_embeddings_on_request(tied: bool) -> None:
    model: Any = LlamaStdlib(
        vocab_size=300, hidden_size=16, layers=1, tie_word_embeddings=tied
    ).build_model()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
