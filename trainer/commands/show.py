"""``trainer show FILE``: print the first batch of a language task as the model sees it.

Tokens that are trained on are green, everything else is dim; in a file or a pipe they stand between
« and ». Behind each token that ``MaskedLM`` is to predict stands what it was, behind a text of
``SequenceClassifier`` its label.
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

GREEN, DIM, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"


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

    from ..evaluator import sets_of

    loaded = load_config(words)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no part of the answer
        task, data, numbers, batch = _first_batch(loaded)

    shown = {"data": data.train}
    for name, chosen in sets_of(data).items():
        shown[f"evaluation {name}".strip()] = chosen.items
    for name, rows in shown.items():
        print(f"{name:11} {getattr(rows, 'fill', f'{len(rows):,} rows')}")
    for notice in task.notices():
        print(f"note: {notice}")

    count = len(batch["input_ids"])
    if args.rows is not None:
        count = min(args.rows, count)
    for number in range(count):
        row = {name: column[number].tolist() for name, column in batch.items()}
        if "position_ids" in row:
            title, *lines = _packed(task, row, data.train.cuts(numbers[number]))
        elif isinstance(row["labels"], list):
            title, *lines = _masked(task, row)
        else:
            title, *lines = _classified(task, row)
        print(f"== row {number + 1}: {title}")
        for line in lines:
            print(line)
    return 0


def _first_batch(loaded: Loaded) -> tuple[Any, Any, Sequence[int], Any]:
    """Build a task's data as one process, and return the first micro-batch.

    Returns:
        The task, its data, the numbers of the batch's rows in the data, and the batch.
    """
    from ..building.data import build_data
    from ..data.batches import Layout
    from ..data.indexed import IndexedData
    from ..language.base import LanguageTask

    task, config = load_task(loaded)
    if not isinstance(task, LanguageTask):
        rule = "shows tasks of trainer.language, such as trainer.language:CausalLM"
        raise usage_error("config", config.task, rule)

    layout = Layout(
        rank=0, world_size=1, micro_batch_size=config.micro_batch_size, accumulation_steps=1
    )
    data, windows = build_data(task, config, layout, loaded.origins, pin_memory=False)
    assert isinstance(windows, IndexedData)
    _, micro_batches = next(windows.samples(0))
    window = next(windows.windows(0, 1))
    return task, data, micro_batches[0], window.micros[0].batch


def _packed(task: Any, row: dict[str, Any], cuts: Sequence[tuple[bool, bool]]) -> Iterator[str]:
    """Yield the lines of a row of ``CausalLM``: a title, then two lines for each document.

    Args:
        task: of the row.
        row: ``input_ids``, ``labels`` and ``position_ids``, which begin at 0 in each document.
        cuts: of each document, whether it was cut before and after what is in this row.
    """
    from ..language.packing import IGNORED

    ids, labels = row["input_ids"], row["labels"]
    predicts = [label != IGNORED for label in labels]
    yield f"{len(ids)} positions, {sum(predicts)} of them predict a token"

    starts = [index for index, position in enumerate(row["position_ids"]) if position == 0]
    for number, (start, end) in enumerate(pairwise([*starts, len(ids)])):
        count = sum(predicts[start:end])
        if not count:  # the filler at the end of a row; each document predicts some
            yield f"-- {end - start} positions hold nothing"
            continue

        cut_before, cut_after = cuts[number]
        remarks = ""
        if cut_before:
            remarks += ", begins in the middle of its document"
        if cut_after:
            remarks += ", is cut off before the end of its document"
        yield (
            f"-- document {number + 1}: {end - start} positions, "
            f"{count} of them predict a token{remarks}"
        )

        # Position i predicts token i + 1: a token is trained on where the position before predicts.
        tokens = ids[start:end]
        trained = [False, *predicts[start : end - 1]]
        if predicts[end - 1]:  # its token is an input of no position here
            tokens = [*tokens, labels[end - 1]]
            trained.append(True)
        yield _text(task, tokens, trained)


def _masked(task: Any, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a row of ``MaskedLM``: behind each token to predict, what it was."""
    from ..language.packing import IGNORED

    tokens: list[int] = []
    trained: list[bool] = []
    columns = zip(row["input_ids"], row["labels"], row["attention_mask"], strict=True)
    for token, label, is_token in columns:
        if is_token:  # not padding
            tokens.append(token)
            trained.append(False)
        if label != IGNORED:
            tokens.append(label)
            trained.append(True)

    yield f"{sum(row['attention_mask'])} tokens, {sum(trained)} of them are to be predicted"
    yield _text(task, tokens, trained)


def _classified(task: Any, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a row of ``SequenceClassifier``: the text, and its label behind it."""
    columns = zip(row["input_ids"], row["attention_mask"], strict=True)
    tokens = [token for token, is_token in columns if is_token]
    label = task.memory["labels"][row["labels"]]

    yield f"{len(tokens)} tokens"
    yield f"{_text(task, tokens, [False] * len(tokens))} {_coloured(label, trained=True)}"


def _text(task: Any, tokens: list[int], trained: list[bool]) -> str:
    """Return tokens as text, with those marked that are trained on."""
    tokenizer = task.load_tokenizer()

    def decode(end: int) -> str:
        text: str = tokenizer.decode(tokens[:end], clean_up_tokenization_spaces=False)
        return text

    parts = []
    end = 0
    for is_trained, span in groupby(trained):
        start = end
        end += len(list(span))
        # A span decoded alone may lose the space before it: so what it adds to the text is shown.
        added = decode(end)[len(decode(start)) :]
        parts.append(_coloured(added, trained=is_trained))
    return "".join(parts)


def _coloured(text: str, *, trained: bool) -> str:
    if sys.stdout.isatty():
        colour = GREEN if trained else DIM
        return f"{colour}{text}{PLAIN}"
    return f"«{text}»" if trained else text
