"""``trainer train``: the same as a script that calls ``trainer.main()``."""

from __future__ import annotations

import pytest

from trainer.commands import cli, train


def test_train_passes_its_words_to_main_and_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []

    def main(words: list[str]) -> None:
        given.extend(words)
        raise SystemExit(3)

    monkeypatch.setattr(train, "main", main)
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--config", "train.yaml", "--lr", "0.1"])
    assert ended.value.code == 3
    assert given == ["--config", "train.yaml", "--lr", "0.1"]
