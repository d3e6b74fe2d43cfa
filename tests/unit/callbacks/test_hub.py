"""A secret must not go to the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.callbacks.hub import refuse_secrets


def test_a_folder_with_a_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    settings = {
        "gate_token": "fedcba9876543210",
        "width": 8,
        "name": "not a secret",
        "nested": {"tokens": ["aaaaaaaa", "bbbbbbbb"]},
        "address": "postgresql://anna:cccccccc@host/name",
    }
    (tmp_path / "deep").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text('{"name": "not a secret"}')
    refuse_secrets(tmp_path, settings)

    for name, value in (
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("nested.tokens", "bbbbbbbb"),
        ("address", settings["address"]),
        ("gate_token", "fedcba9876543210"),
    ):
        (tmp_path / "deep/README.md").write_text(f"key: {value}")
        with pytest.raises(ValueError, match=f"/ holds the secret {name}$"):
            refuse_secrets(tmp_path, settings)
