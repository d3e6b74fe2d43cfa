"""Fixtures of the commands' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_command import Answer, Check
from launchers import ROOT
from tiny_language import save_model

from trainer.commands import cli


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """``trainer check`` in this process, which has imported what it needs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)

    def run(*words: str) -> Answer:
        code = cli.main(["check", *words])
        printed = capsys.readouterr()
        return Answer(returncode=code, stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")
