"""The corpus is real, split without overlap and the same on every call; the loss means what it
says.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from corpora import words
from llama_stdlib import IGNORED, LlamaStdlib
from torch.utils.data import default_collate

from trainer import ConfigError, DataError


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaStdlib:
    return LlamaStdlib(
        max_bytes=200_000, vocab_size=512, cache_dir=str(tmp_path_factory.mktemp("cache"))
    )


# --- text


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
