"""``trainer show FILE``: print the first batch of a language task as the model sees it.

What is learnt is green, everything else dim; into a file or a pipe, what is learnt stands between «
and ». Behind each token that ``MaskedLM`` is to predict stands what it was, behind a text of
``SequenceClassifier`` its label.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from ..script import load_config, load_task
from .usage import usage_error

GREEN, DIM, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def run(argv: Sequence[str]) -> int:
    """Print the batch; return 0.

    Raises:
        ConfigError: the config is wrong, or its task is not of ``trainer.language``.
        DataError: there is nothing to learn from.
    """
    parser = argparse.ArgumentParser(
        prog="trainer show", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rows", type=int, help="of the batch that are shown, at most")
    args, rest = parser.parse_known_args(argv)
    loaded = load_config(rest)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is not our answer
        from ..building.data import build_data
        from ..data.batches import Layout
        from ..data.indexed import IndexedData
        from ..language.base import LanguageTask

        task, config = load_task(loaded)
        if not isinstance(task, LanguageTask):
            raise usage_error(
                "config",
                config.task,
                "shows tasks of trainer.language, such as trainer.language:CausalLM",
            )
        layout = Layout(
            rank=0, world_size=1, micro_batch_size=config.micro_batch_size, accumulation_steps=1
        )
        data, windows = build_data(task, config, layout, loaded.origins, pin_memory=False)
        assert isinstance(windows, IndexedData)
        _, [numbers, *_] = next(windows.samples(0))
        batch = next(windows.windows(0, 1)).micros[0].batch
    for name, rows in (("data", data.train), ("evaluation", data.evaluation)):
        if rows is not None:
            print(f"{name:12}{getattr(rows, 'fill', f'{len(rows):,} rows')}")
    for notice in task.notices():
        print(f"note: {notice}")
    count = len(batch["input_ids"])
    for number in range(count if args.rows is None else min(args.rows, count)):
        row = {name: part[number].tolist() for name, part in batch.items()}
        if "position_ids" in row:
            title, *text = _packed(task, row, data.train.cuts(numbers[number]))
        elif isinstance(row["labels"], list):
            title, *text = _masked(task, row)
        else:
            title, *text = _labelled(task, row)
        print("\n".join([f"== row {number + 1}: {title}", *text]))
    return 0


def _packed(task: Any, row: dict[str, Any], cuts: Sequence[tuple[bool, bool]]) -> Iterator[str]:
    """Yield the lines of a row of ``CausalLM``: about it, then a line for each document, and its
    text below.

    Args:
        cuts: of each document, whether it was cut before and behind what is here.
    """
    from ..language.packing import IGNORED

    ids, labels, positions = row["input_ids"], row["labels"], row["position_ids"]
    borders = [*(at for at, position in enumerate(positions) if position == 0), len(ids)]
    learnt = sum(label != IGNORED for label in labels)
    yield f"{len(ids)} positions, {learnt} of them predict a token"
    for document, (start, end) in enumerate(pairwise(borders), 1):
        targets = [label != IGNORED for label in labels[start:end]]
        if not any(targets):  # each document has some
            yield f"-- {end - start} positions hold nothing"
            continue
        cut_before, cut_behind = cuts[document - 1]
        more = (
            ", begins in the middle of its document" * cut_before
            + ", is cut off before the end of its document" * cut_behind
        )
        yield f"-- document {document}: {end - start} positions, {sum(targets)} of them predict a token{more}"
        tokens, flags = ids[start:end], [False, *targets[:-1]]
        if targets[-1]:  # predicted, and itself no input
            tokens, flags = [*tokens, labels[end - 1]], [*flags, True]
        yield _text(task, tokens, flags)


def _masked(task: Any, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a row of ``MaskedLM``: behind each token that is to be predicted, what it
    was.
    """
    from ..language.packing import IGNORED

    shown: list[tuple[int, bool]] = []
    for token, label, there in zip(
        row["input_ids"], row["labels"], row["attention_mask"], strict=True
    ):
        shown += [(token, False)] * there + [(label, True)] * (label != IGNORED)
    tokens, flags = map(list, zip(*shown, strict=True))
    yield f"{sum(row['attention_mask'])} tokens, {sum(flags)} of them are to be predicted"
    yield _text(task, tokens, flags)


def _labelled(task: Any, row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a row of ``SequenceClassifier``: the text, and its label behind it."""
    tokens = [
        token for token, there in zip(row["input_ids"], row["attention_mask"], strict=True) if there
    ]
    yield f"{len(tokens)} tokens"
    yield f"{_text(task, tokens, [False] * len(tokens))} {_coloured(task.memory['labels'][row['labels']], True)}"


def _text(task: Any, tokens: list[int], flags: list[bool]) -> str:
    """Return tokens as text, of which those with a flag are learnt."""
    tokenizer, parts, end = task.load_tokenizer(), [], 0
    for learnt, span in groupby(flags):
        start, end = end, end + len(list(span))
        # Spaces between words may belong to neither span: what a span adds to the text before it is
        # shown.
        before, whole = (
            tokenizer.decode(tokens[:at], clean_up_tokenization_spaces=False) for at in (start, end)
        )
        parts.append(_coloured(whole[len(before) :], learnt))
    return "".join(parts)


def _coloured(text: str, learnt: bool) -> str:
    if sys.stdout.isatty():
        return f"{GREEN if learnt else DIM}{text}{PLAIN}"
    return f"«{text}»" if learnt else text
