"""``trainer merge``: an adapter becomes a part of its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from save_adapter import save_adapter

from trainer.commands import cli


def test_merge_adds_the_adapter_to_the_weights_of_a_new_model(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def text(folder: Path) -> str:
        words = ["generate", str(folder), "--prompt", "The", "--max_new_tokens", "8"]
        assert cli.main(words) == 0
        return capsys.readouterr().out

    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    save_adapter(adapter, llama)
    assert cli.main(["merge", str(adapter), "--to", str(merged)]) == 0
    assert capsys.readouterr().out == f"{merged}\n"
    assert not (merged / "adapter_config.json").exists()
    weights, base = (load_file(path / "model.safetensors") for path in (merged, llama))
    assert weights.keys() == base.keys()
    assert any(not weights[name].equal(base[name]) for name in base)
    assert text(merged) == text(adapter) != text(llama)
    assert cli.main(["merge", str(adapter), "--to", str(merged)]) == 2
    assert "exists already; give a new folder" in capsys.readouterr().err


def test_merge_refuses_a_model_that_is_no_adapter(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["merge", str(llama), "--to", str(tmp_path / "other")]) == 2
    assert "holds no adapter_config.json" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
