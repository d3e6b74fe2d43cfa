"""``trainer show``, ``generate`` and ``merge``: a batch as the model sees it, and what becomes of
exported models.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import conversation, save_masked, save_model, save_rows

from trainer.commands import cli
from trainer.commands.whole_model import build_whole
from trainer.language import Adapter, CausalLM


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


def config(folder: Path, llama: Path, **settings: Any) -> list[str]:
    """The words that name a config for two short conversations, which share a row."""
    data = save_rows(
        folder / "a.jsonl", [conversation("Hello", "Good day"), conversation("Why?", "Because.")]
    )
    keys = {
        "model": llama,
        "data": data,
        "messages_column": "messages",
        "cache_dir": folder / "cache",
        **settings,
    }
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    text = "\n".join(
        ["task: trainer.language:CausalLM", "task_settings:", *lines, "max_steps: 1", ""]
    )
    (folder / "train.yaml").write_text(text)
    return ["--config", str(folder / "train.yaml")]


def test_show_prints_documents_and_what_of_them_is_learnt(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = config(tmp_path, llama, sequence_length=96)
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


def test_show_prints_what_masked_and_classified_rows_teach(
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


def test_show_answers_a_wrong_config_and_another_task_in_a_line(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = config(tmp_path, llama, seqence_length=96)
    assert cli.main(["show", *words]) == 2
    assert "unknown key; did you mean 'sequence_length'?" in capsys.readouterr().err
    (tmp_path / "train.yaml").write_text("task: digits_cnn:DigitsCNN\nmax_steps: 1\n")
    assert cli.main(["show", *words]) == 2
    assert "shows tasks of trainer.language" in capsys.readouterr().err


def test_check_builds_a_model_with_its_values_and_evaluates_a_batch(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = config(tmp_path, llama, evaluation=tmp_path / "a.jsonl", sequence_length=96)
    with open(tmp_path / "train.yaml", "a") as file:
        file.write("eval_every: 1\nbest_metric: eval/los\n")
    assert cli.main(["check", "--build", words[1]]) == 2
    assert (
        "best_metric: 'eval/los': the task measures no such value; did you mean 'eval/loss'?"
        in (capsys.readouterr().err)
    )


def test_generate_writes_on_with_models_and_adapters(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(folder: Path, *words: str) -> str:
        assert (
            cli.main(["generate", str(folder), "--prompt", "The", "--max_new_tokens", "8", *words])
            == 0
        )
        return capsys.readouterr().out

    assert text(llama) == text(llama, "--seed", "5"), "the likeliest tokens, whatever is drawn"
    drawn = [text(llama, "--temperature", "2", "--seed", str(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert text(llama, "--chat") != text(llama)
    assert text(llama, "--chat", "--system", "Be brief.") != text(llama, "--chat")
    assert text(llama, "--temperature", "2", "--top_p", "0.001") == text(llama)
    (tmp_path / "prompts.txt").write_text("The\nA\n")
    assert (
        cli.main(
            [
                "generate",
                str(llama),
                "--prompts",
                str(tmp_path / "prompts.txt"),
                "--max_new_tokens",
                "8",
            ]
        )
        == 0
    )
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["The", "A"]
    assert answers[0]["text"] + "\n" == text(llama)
    for words in (["--system", "Be brief."], ["--top_p", "0.5"], ["--prompts", "none.txt"]):
        with pytest.raises(SystemExit):
            cli.main(
                [
                    "generate",
                    str(llama),
                    *(["--prompt", "The"] if "--prompts" not in words else []),
                    *words,
                ]
            )
    task = CausalLM(model=str(llama), data="", adapter=Adapter(r=2))
    model: Any = build_whole(task)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(tmp_path / "adapter")
    task.save_extras(tmp_path / "adapter")
    assert text(tmp_path / "adapter") != text(llama)
    assert cli.main(["merge", str(tmp_path / "adapter"), "--to", str(tmp_path / "merged")]) == 0
    capsys.readouterr()
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert text(tmp_path / "merged") == text(tmp_path / "adapter")
    assert cli.main(["merge", str(tmp_path / "adapter"), "--to", str(tmp_path / "merged")]) == 2
    assert "exists already; give a new folder" in capsys.readouterr().err
    assert cli.main(["merge", str(llama), "--to", str(tmp_path / "other")]) == 2
    assert cli.main(["generate", str(tmp_path / "none"), "--prompt", "The"]) == 2
