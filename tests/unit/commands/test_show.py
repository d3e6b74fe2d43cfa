"""``trainer show``: a batch as the model sees it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conversation_config import conversation_config
from tiny_language import save_masked, save_rows

from trainer.commands import cli


def test_show_packed_documents_and_their_trained_tokens(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = conversation_config(tmp_path, llama, sequence_length=96)
    assert cli.main(["show", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("data        2 documents, ")
    assert (
        "== row 1: 96 positions" in shown
        and "-- document 2:" in shown
        and "positions hold nothing" in shown
    )
    assert (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n«Good day<|im_end|>»\n" in shown
    )
    assert "note: data: conversations in the column messages" in shown
    assert (
        "note: template: the tokenizer's; its {% generation %} marks say what the assistant writes"
        in shown
    )
    assert "middle of its document" not in shown and "cut off" not in shown
    assert cli.main(["show", *words, "--task_settings.sequence_length", "12"]) == 0
    pieces = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("-- document")
    ]
    assert any("begins in the middle of its document" in line for line in pieces)
    assert any("is cut off before the end of its document" in line for line in pieces)
    assert cli.main(["show", *words, "--rows", "0"]) == 0
    assert "row 1" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["show", *words]) == 0
    assert "\x1b[32mGood day<|im_end|>\x1b[0m" in capsys.readouterr().out


def test_show_masked_and_classified_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = save_rows(
        tmp_path / "rows.jsonl", [{"text": "To be or not", "label": "good"}, {"text": "to be."}]
    )
    settings = (
        f"model: {save_masked(tmp_path / 'bert')}, data: {rows}, cache_dir: {tmp_path / 'cache'}"
    )
    path = tmp_path / "train.yaml"
    path.write_text(
        f"task: trainer.language:MaskedLM\ntask_settings: {{{settings}}}\nmax_steps: 1\n"
    )
    assert cli.main(["show", str(path), "--task_settings.mask_probability=0.5"]) == 0
    data, *lines = capsys.readouterr().out.splitlines()
    assert data.split() == ["data", "2", "rows"]
    for title, text in zip(lines[::2], lines[1::2], strict=True):
        count = int(title.removesuffix(" of them are to be predicted").rpartition(" ")[2])
        assert count > 1 and text.count("«") == text.count("»") == count
    assert any("<|im_start|>«" in text for text in lines[1::2]), (
        "the token that hides another one, and that one"
    )
    path.write_text(path.read_text().replace("MaskedLM", "SequenceClassifier"))
    assert cli.main(["show", str(path), "--rows", "1"]) == 2, "the second text has no label"
    save_rows(rows, [{"text": "To be or not", "label": "good"}])
    capsys.readouterr()
    assert cli.main(["show", str(path), "--rows", "1"]) == 0
    assert re.fullmatch(
        r"data        1 rows\n== row 1: \d+ tokens\n.*To be or not.* «good»\n",
        capsys.readouterr().out,
    )


def test_show_names_each_evaluation_set(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = f"{{one: {tmp_path}/a.jsonl, other: {tmp_path}/a.jsonl}}"
    words = conversation_config(tmp_path, llama, evaluation=sets, sequence_length=96)
    assert cli.main(["show", *words, "--rows", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" 2 documents")[0] for line in lines[:3]] == [
        "data       ",
        "evaluation one",
        "evaluation other",
    ]


def test_show_refuses_a_wrong_config_and_another_task(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = conversation_config(tmp_path, llama, seqence_length=96)
    assert cli.main(["show", *words]) == 2
    assert "unknown key; did you mean 'sequence_length'?" in capsys.readouterr().err
    (tmp_path / "train.yaml").write_text("task: digits_cnn:DigitsCNN\nmax_steps: 1\n")
    assert cli.main(["show", *words]) == 2
    assert "shows tasks of trainer.language" in capsys.readouterr().err
