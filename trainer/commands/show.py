"""``trainer show FILE``: print the first batch of a language task as the model sees it.

Tokens that are trained on stand between « and ». Behind each token that ``MaskedLM`` predicts
stands the token that it hides, above a text of ``SequenceClassifier`` its label.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from ..script import load_config, load_task
from .usage import usage_error

if TYPE_CHECKING:
    from ..config.load import Loaded


def run(argv: Sequence[str]) -> int:
    """Print the batch, and return 0.

    Raises:
        ConfigError: the config is wrong, or its task is not one of ``trainer.language``.
        DataError: there is nothing to train on.
    """
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="trainer show", description=summary)
    parser.add_argument("--rows", type=int, help="of the batch that are shown, at most")
    args, words = parser.parse_known_args(argv)

    with contextlib.redirect_stdout(sys.stderr):  # libraries print as well
        task, batch = _first_batch(load_config(words))
    for notice in task.notices():
        print(f"note: {notice}")

    for number in range(len(batch["input_ids"]))[: args.rows]:
        row = {name: column[number].tolist() for name, column in batch.items()}
        print(f"== row {number + 1}")
        if "position_ids" in row:
            documents = _documents(row)
        elif isinstance(row["labels"], list):
            documents = _masked(row)
        else:
            label = task.memory["labels"][row["labels"]]
            print(f"label: {label}")
            documents = _masked({**row, "labels": [-100] * len(row["input_ids"])})
        for tokens, is_trained in documents:
            print("--", _text(task.load_tokenizer(), tokens, is_trained))
    return 0


def _first_batch(loaded: Loaded) -> tuple[Any, Any]:
    """Build a task's data as one process, and return the task and the first micro-batch."""
    from ..building.data import build_data
    from ..data.batches import Layout
    from ..language.base import LanguageTask

    task, config = load_task(loaded)
    if not isinstance(task, LanguageTask):
        rule = "shows tasks of trainer.language, such as trainer.language:CausalLM"
        raise usage_error("config", config.task, rule)

    layout = Layout(
        rank=0, world_size=1, micro_batch_size=config.micro_batch_size, accumulation_steps=1
    )
    _, windows = build_data(task, config, layout, loaded.origins, pin_memory=False)
    return task, next(windows.windows(0, 1)).micros[0].batch


def _documents(row: dict[str, Any]) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield the tokens of each document of a row of ``CausalLM``, and whether each is trained on.

    Position i holds token i and predicts token i + 1.
    """
    ids, labels = row["input_ids"], row["labels"]
    starts = [index for index, position in enumerate(row["position_ids"]) if position == 0]
    for start, end in pairwise([*starts, len(ids)]):
        is_trained = [False, *(label >= 0 for label in labels[start:end])]
        if any(is_trained):  # the padding at the end of a row predicts nothing
            # The last position predicts a token that is no input.
            yield (
                [*ids[start:end], max(labels[end - 1], 0)][: end - start + is_trained[-1]],
                is_trained,
            )


def _masked(row: dict[str, Any]) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield the tokens of a row, and behind each hidden token the token that it hides."""
    tokens: list[int] = []
    is_trained: list[bool] = []
    columns = zip(row["input_ids"], row["labels"], row["attention_mask"], strict=True)
    for token, label, is_token in columns:
        if is_token:  # not padding
            tokens.append(token)
            is_trained.append(False)
        if label >= 0:
            tokens.append(label)
            is_trained.append(True)
    yield tokens, is_trained


def _text(tokenizer: Any, tokens: list[int], is_trained: list[bool]) -> str:
    """Return tokens as text, with the tokens marked that are trained on."""
    parts = []
    start = 0
    for is_marked, span in groupby(is_trained[: len(tokens)]):
        end = start + len(list(span))
        # A span decoded alone may lose the space before it. So the text that it adds is shown.
        text = tokenizer.decode(tokens[:end])[len(tokenizer.decode(tokens[:start])) :]
        parts.append(f"«{text}»" if is_marked else text)
        start = end
    return "".join(parts)
