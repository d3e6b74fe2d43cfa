"""Tiny models and texts, made once for all tests of language tasks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import CHATS
from preferences import save_preferences
from tiny_language import change_tensors, save_model, save_rows, save_texts

from trainer import ConfigError
from trainer.language import CausalLM


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama and its tokenizer, as people download them."""
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def given(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that model, another of the same kind, and eight pairs."""
    folder = tmp_path_factory.mktemp("given")
    shutil.copytree(llama, folder / "llama")
    other = shutil.copytree(llama, folder / "other")
    change_tensors(other, lambda tensors: [one.mul_(1.1) for one in tensors.values()])
    save_preferences(folder / "pairs.jsonl", 8)
    return folder


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl")


@pytest.fixture
def task(llama: Path, texts: Path, tmp_path: Path) -> Callable[..., CausalLM]:
    """A task on the tiny Llama with short rows, and settings. ``rows`` are the data."""

    def make(*, rows: list[Any] | None = None, **settings: Any) -> CausalLM:
        if rows is not None:
            settings["data"] = str(save_rows(tmp_path / "a.jsonl", rows))
        defaults = {
            "model": str(llama),
            "data": str(texts),
            "sequence_length": 128,
            "cache_dir": str(tmp_path / "cache"),
        }
        return CausalLM(**{**defaults, **settings})

    return make


@pytest.fixture
def refused(task: Callable[..., CausalLM]) -> Callable[..., None]:
    """Build the model of a task with settings, which is refused with a message."""

    def build(message: str, **settings: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            task(**settings).build_model()

    return build


@pytest.fixture
def chats(tmp_path: Path) -> str:
    """A file with two conversations."""
    return str(save_rows(tmp_path / "chats.jsonl", CHATS))
