"""``trainer show``: a batch as the model sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversation_config import conversation_config
from preferences import preference
from tiny_language import save_masked, save_rows

from trainer.commands import cli


def config_of(task: str, model: Path, rows: Path) -> Path:
    """Write a training config beside the rows."""
    path = rows.with_name("train.yaml")
    settings = f"model: {model}, data: {rows}, cache_dir: {rows.with_name('cache')}"
    path.write_text(f"task: trainer.language:{task}\ntask_settings: {{{settings}}}\nmax_steps: 1\n")
    return path


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_show_packed_documents_and_their_trained_tokens(
    attention: str, tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = conversation_config(tmp_path, llama, sequence_length=96)
    words = [*words, "--task_settings.attention", attention]
    assert cli.main(["show", *words]) == 0
    shown = capsys.readouterr().out
    assert "note: data: columns messages" in shown and "note: template: the tokenizer's" in shown
    assert (
        "-- <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n«Good day<|im_end|>»\n"
        in shown
    )
    assert shown.count("\n-- ") == 2, "a line for each document, none for the padding"


def test_show_masked_and_classified_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = save_rows(
        tmp_path / "rows.jsonl", [{"text": "To be or not", "label": "good"}, {"text": "to be."}]
    )
    path = config_of("MaskedLM", save_masked(tmp_path / "bert"), rows)
    assert cli.main(["show", str(path), "--task_settings.mask_probability=0.5"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("== row") == 2 and "<|im_start|>«" in shown
    path.write_text(path.read_text().replace("MaskedLM", "SequenceClassifier"))
    assert cli.main(["show", str(path)]) == 2, "the second text has no label"
    text = "To be or not"
    save_rows(rows, [{"text": text, "label": label} for label in ("good", "good", "bad")])
    capsys.readouterr()
    assert cli.main(["show", str(path), "--micro_batch_size", "1"]) == 0
    _, label, shown = capsys.readouterr().out.splitlines()
    assert label in ("label: good", "label: bad") and text in shown


def test_show_refuses_another_task(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = conversation_config(tmp_path, llama)
    (tmp_path / "train.yaml").write_text("task: digits_cnn:DigitsCNN\nmax_steps: 1\n")
    assert cli.main(["show", *words]) == 2
    assert "is no task of trainer.language" in capsys.readouterr().err


def test_show_both_sides_of_a_preference(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    rows = save_rows(tmp_path / "rows.jsonl", [preference("Why?", "Because.", "No.")] * 2)
    path = config_of("DPO", llama, rows)
    assert cli.main(["show", str(path), "--micro_batch_size", "1"]) == 0
    shown = capsys.readouterr().out
    before = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert f"== row 1: chosen\n-- {before}«Because.<|im_end|>»\n" in shown
    assert f"== row 1: rejected\n-- {before}«No.<|im_end|>»\n" in shown
    assert "== row 2" not in shown and "\033" not in shown

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["show", str(path)]) == 0
    assert "\033[32m«No.<|im_end|>»\033[0m" in capsys.readouterr().out

    path.write_text(path.read_text().replace(":DPO", ":RewardModel"))
    assert cli.main(["show", str(path)]) == 0
    assert "== row 1: rejected\n-- " in capsys.readouterr().out
