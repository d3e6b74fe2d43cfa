"""``trainer show FILE``: print the first rows of a CausalLM's data as the model sees them.

Tokens that are trained on are green. In a file or a pipe they stand between « and ».
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from ..script import load_config, load_task
from .usage import usage_error

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


def run(argv: Sequence[str]) -> int:
    """Print the rows, and return 0.

    Raises:
        ConfigError: the config is wrong, or its task is no ``trainer.language:CausalLM``.
        DataError: there is nothing to train on.
    """
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="trainer show", description=summary)
    parser.add_argument("--rows", type=int, help="number of rows (default: micro_batch_size)")
    args, words = parser.parse_known_args(argv)

    from ..language import CausalLM
    from ..language.packing import IGNORED

    with contextlib.redirect_stdout(sys.stderr):  # libraries print as well
        task, config = load_task(load_config(words))
        if not isinstance(task, CausalLM):
            raise usage_error("config", config.task, "shows trainer.language:CausalLM only")
        rows: Any = task.build_data().train
    for notice in task.notices():
        print(f"note: {notice}")

    count = args.rows or config.micro_batch_size
    for number in range(min(count, len(rows))):
        row = {name: column.tolist() for name, column in rows[number].items()}
        ids, labels = row["input_ids"], row["labels"]
        starts = [index for index, position in enumerate(row["position_ids"]) if position == 0]
        print(f"== row {number + 1}: {len(ids)} positions, {len(starts)} documents")
        for start, end in pairwise([*starts, len(ids)]):
            # Position i predicts token i + 1; the last position predicts a token that is no input.
            learnt = [False, *(label != IGNORED for label in labels[start:end])]
            tokens = [*ids[start:end], labels[end - 1]][: end - start + learnt[-1]]
            print(_text(task.load_tokenizer(), tokens, learnt[: len(tokens)]))
            print("--")
    return 0


def _text(tokenizer: Any, tokens: list[int], learnt: list[bool]) -> str:
    """Return tokens as text, with those marked that are trained on."""
    before, after = (GREEN, PLAIN) if sys.stdout.isatty() else ("«", "»")
    parts = []
    start = 0
    for is_learnt, span in groupby(learnt):
        end = start + len(list(span))
        # A span decoded alone may lose the space before it. So the text that it adds is shown.
        text = tokenizer.decode(tokens[:end])[len(tokenizer.decode(tokens[:start])) :]
        parts.append(f"{before}{text}{after}" if is_learnt else text)
        start = end
    return "".join(parts)
