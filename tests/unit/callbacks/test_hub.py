"""What must not go to the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.callbacks.hub import HubPush, secret_in


def test_a_folder_with_a_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    (tmp_path / "deep").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert secret_in(tmp_path) == ""

    (tmp_path / "deep" / "README.md").write_text("key: 0123456789abcdef")
    assert secret_in(tmp_path) == "WANDB_API_KEY"
    push = HubPush("anna/digits", private=False, best=None)
    with pytest.raises(ValueError, match="was not uploaded: it holds the secret WANDB_API_KEY"):
        push._upload(tmp_path, None, "Step 1")
