"""What must not go to the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.callbacks.hub import HubPush, secret_in, secrets_of


def test_a_folder_with_a_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    secrets = secrets_of({"gate_token": "fedcba9876543210", "width": 8, "name": "not a secret"})
    (tmp_path / "deep").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text('{"name": "not a secret"}')
    assert secret_in(tmp_path, secrets) == ""

    for name, value in (("WANDB_API_KEY", "0123456789abcdef"), ("gate_token", "fedcba9876543210")):
        (tmp_path / "deep" / "README.md").write_text(f"key: {value}")
        assert secret_in(tmp_path, secrets) == name
    push = HubPush("anna/digits", private=False, best=None)
    with pytest.raises(ValueError, match="was not uploaded: it holds the secret gate_token"):
        push._upload(tmp_path, None, "Step 1", secrets)
