"""``trainer show CONFIG``: print the first batch of a language task as the model sees it.

Tokens that are trained on stand between « and », in colour on a terminal. The hidden token of
``MaskedLM`` stands behind the mask, the label of ``SequenceClassifier`` above the text, and both
sides of a preference below each other.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from itertools import compress, groupby
from operator import itemgetter
from typing import Any

from ..errors import usage_error
from ..script import load_config, load_task
from .usage import Options

_COLUMNS = ("input_ids", "labels", "position_ids", "attention_mask")


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the batch, and return 0."""
    loaded = load_config([*words, *settings])

    from ..building.data import build_data
    from ..data.batches import Layout
    from ..language.base import LanguageTask
    from ..language.classifier import REGRESSION, SequenceClassifier
    from ..language.preference import PreferenceTask

    with contextlib.redirect_stdout(sys.stderr):  # libraries print as well
        task, config = load_task(loaded)
        if not isinstance(task, LanguageTask):
            raise usage_error("config", config.task, "is no task of trainer.language")
        size = config.micro_batch_size or 1
        layout = Layout(rank=0, world_size=1, micro_batch_size=size, accumulation_steps=1)
        _, windows = build_data(task, config, layout, loaded.origins, pin_memory=False)
        batch: Any = next(windows.windows(0, 1)).micros[0].batch
    for notice in task.notices():
        print(f"note: {notice}")

    sides = (": chosen", ": rejected") if isinstance(task, PreferenceTask) else ("",)
    for number in range(len(batch["input_ids"])):
        row = {name: batch[name][number].tolist() for name in _COLUMNS if name in batch}
        place, side = divmod(number, len(sides))
        print(f"== row {place + 1}{sides[side]}")
        if isinstance(task, SequenceClassifier):
            label = row.pop("labels")
            is_number = task.problem_type == REGRESSION
            print("label:", *(label if is_number else compress(task.classes, label)))
        for tokens in _documents(row):
            print("--", _text(task.load_tokenizer(), tokens))
    return 0


def _documents(row: Mapping[str, Any]) -> list[list[tuple[int, bool]]]:
    """Return the documents of a row: tokens, and whether each is trained on.

    ``CausalLM`` learns the next token, which takes the place of the input's. Other labels are the
    hidden token of a mask, and classifiers and reward models learn no token.
    """
    is_causal = "position_ids" in row
    ids = row["input_ids"]
    places = row.get("position_ids", range(len(ids)))
    labels = row.get("labels", [-100] * len(ids))
    masks = [True] * len(ids) if is_causal else row["attention_mask"]
    documents: list[list[tuple[int, bool]]] = []
    is_predicted = False
    for token, label, place, is_token in zip(ids, labels, places, masks, strict=True):
        if place == 0:
            documents.append([])
            is_predicted = False
        if is_token and not is_predicted:  # not padding
            documents[-1].append((token, False))
        if label >= 0:
            documents[-1].append((label, True))
        is_predicted = is_causal and label >= 0
    # The padding at the end of a row predicts nothing.
    return [tokens for tokens in documents if not is_causal or any(map(itemgetter(1), tokens))]


def _text(tokenizer: Any, tokens: list[tuple[int, bool]]) -> str:
    """Return tokens as text, with marks around those that are trained on."""
    ids: list[int] = []
    text, before = "", ""
    for is_trained, span in groupby(tokens, key=itemgetter(1)):
        ids += [token for token, _ in span]
        # A span that is decoded alone may lose the first space.
        decoded = tokenizer.decode(ids)
        added = decoded[len(before) :]
        if is_trained:
            added = f"\033[32m«{added}»\033[0m" if sys.stdout.isatty() else f"«{added}»"
        text += added
        before = decoded
    return text
