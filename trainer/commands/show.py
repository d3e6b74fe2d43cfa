"""``trainer show FILE``: print the first batch of a language task as the model sees it.

What is learnt is green, everything else dim; into a file or a pipe, what is learnt stands between « and ».
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from ..config.load import load_config
from ..script import load_task
from .usage import usage_error

GREEN, DIM, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"


def run(argv: Sequence[str]) -> int:
    """Print the batch; return 0.

    Raises:
        ConfigError: the config is wrong, or its task is not of ``trainer.language``.
        DataError: there is nothing to learn from.
    """
    parser = argparse.ArgumentParser(prog="trainer show", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, help="of the batch that are shown, at most")
    args, rest = parser.parse_known_args(argv)
    loaded = load_config(rest)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is not our answer
        from ..build import build_data
        from ..data.batches import Layout
        from ..language import CausalLM

        task, config = load_task(loaded)
        if not isinstance(task, CausalLM):
            raise usage_error(
                "config", config.task, "shows tasks of trainer.language, such as trainer.language:CausalLM"
            )
        layout = Layout(rank=0, world_size=1, micro_batch_size=config.micro_batch_size, accumulation_steps=1)
        data, windows = build_data(task, config, layout, loaded.origins, pin_memory=False)
        batch = next(windows.windows(0, 1)).micros[0].batch
    for name, rows in (("data", data.train), ("evaluation", data.evaluation)):
        if rows is not None:
            print(f"{name:12}{rows.fill}")
    count = len(batch["input_ids"])
    for row in range(count if args.rows is None else min(args.rows, count)):
        print("\n".join(_row(task.load_tokenizer(), {name: part[row].tolist() for name, part in batch.items()}, row)))
    return 0


def _row(tokenizer: Any, row: dict[str, list[int]], number: int) -> Iterator[str]:
    """Yield the lines of one row: a line for each document, and its text below."""
    from ..language.packing import IGNORED

    ids, labels, positions = row["input_ids"], row["labels"], row["position_ids"]
    borders = [*(at for at, position in enumerate(positions) if position == 0), len(ids)]
    learnt = sum(label != IGNORED for label in labels)
    yield f"== row {number + 1}: {len(ids)} positions, {learnt} of them predict a token"
    for document, (start, end) in enumerate(pairwise(borders), 1):
        targets = [label != IGNORED for label in labels[start:end]]
        if not any(targets):  # each document has some
            yield f"-- {end - start} positions hold nothing"
            continue
        yield f"-- document {document}: {end - start} positions, {sum(targets)} of them predict a token"
        tokens, flags = ids[start:end], [False, *targets[:-1]]
        if targets[-1]:  # predicted, and itself no input
            tokens, flags = [*tokens, labels[end - 1]], [*flags, True]
        yield "".join(_spans(tokenizer, tokens, flags))


def _spans(tokenizer: Any, tokens: list[int], flags: list[bool]) -> Iterator[str]:
    colours = sys.stdout.isatty()
    for learnt, span in groupby(zip(flags, tokens, strict=True), key=lambda pair: pair[0]):
        text = tokenizer.decode([token for _, token in span], clean_up_tokenization_spaces=False)
        if colours:
            yield f"{GREEN if learnt else DIM}{text}{PLAIN}"
        else:
            yield f"«{text}»" if learnt else text
