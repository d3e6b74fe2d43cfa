"""``trainer generate``: text of models, of adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from save_adapter import save_adapter

from trainer.commands import cli


def test_generate_continues_prompts_with_models_and_adapters(
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
    save_adapter(tmp_path / "adapter", llama)
    assert text(tmp_path / "adapter") != text(llama)
    assert cli.main(["generate", str(tmp_path / "none"), "--prompt", "The"]) == 2
