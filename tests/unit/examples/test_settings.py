"""Tasks of the examples: settings that cannot be, and what naming a task loads."""

from __future__ import annotations

import subprocess
import sys

import pytest
from corpora import ENVIRONMENT
from digits_cnn import DigitsCNN
from llama_stdlib import LlamaStdlib


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (DigitsCNN, {"width": 12}, "width: 12: must be a positive multiple of 8"),
        (LlamaStdlib, {"vocab_size": 256}, "vocab_size: 256: must be at least 257"),
        (LlamaStdlib, {"held_out": 1}, "held_out: 1: must be at least 2"),
        (
            LlamaStdlib,
            {"hidden_size": 100, "heads": 8},
            "hidden_size: 100: must be a multiple of 2 x heads",
        ),
        (LlamaStdlib, {"key_value_heads": 3}, r"key_value_heads: 3: must divide heads \(4\)"),
    ],
)
def test_impossible_settings(task: type, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task(**settings)


def test_naming_a_task_loads_no_heavy_library() -> None:
    heavy = {"transformers", "tokenizers", "datasets", "sklearn"}
    code = f"import sys, digits_cnn, llama_stdlib; print({heavy} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
