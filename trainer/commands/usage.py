"""The command line of a command: its options, the settings of a training, and files or folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..config.annotations import annotations_of
from ..config.arguments import sort_files, split_command_line
from ..config.documents import Document
from ..config.paths import not_local
from ..config.validate import build
from ..errors import COMMAND_LINE, Origin, usage_error
from ..script import load_config

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a command without options."""


def read_words(
    about: str | None, cls: Callable[..., T], argv: Sequence[str]
) -> tuple[T, list[str], list[str]]:
    """Return the options of a command, the settings of a training, and the other words.

    Raises:
        ConfigError: an option is wrong, or a word is an address such as ``s3://bucket/run``.
        SystemExit: with 0, after ``--help``, which begins with ``about``.
    """
    texts, words = split_command_line(argv, about, cls)
    for word in words:
        rule = not_local(word)
        if rule:
            raise usage_error("", word, rule)

    own = {key: texts.pop(key) for key in texts.keys() & annotations_of(cls)}
    options = build(cls, {}, Origin(COMMAND_LINE).named, texts=own)
    return options, [f"--{key}={text}" for key, text in texts.items()], words


def read_training(
    words: Sequence[str], settings: Sequence[str]
) -> tuple[list[str], list[Document]]:
    """Return the command line of a training, which is checked, and the launch files."""
    configs, found = sort_files(words)
    training = [*(file.path for file in configs), *settings]
    load_config(training)
    return training, found


def only_folders(settings: Sequence[str], words: Sequence[str], most: int = 1) -> Sequence[str]:
    """Return the words of a command without settings: folders, one at least."""
    others = [*settings, *words[most:]]
    if others:
        raise usage_error("", others[0], "unknown word; --help shows the command")
    if not words:
        raise usage_error("", None, "name a folder; --help shows the command")
    return words
