"""``trainer parity``: its words, and what it reads from files and logs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launchers import ROOT
from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands.parity import run, single_process_settings
from trainer.commands.trials import last_error
from trainer.config.load import Loaded
from trainer.launching.request import Request


def test_one_process_is_told_what_only_the_files_say() -> None:
    config = Loaded(config=TrainConfig(task="a:B", max_steps=1), origins={})
    plain = Request(strategy="ddp", strategy_origin=origin("a.yaml:1"), mixed_precision=sourced("bf16", "a.yaml:2"))
    clips = replace(plain, strategy="zero2", mixed_precision=None, max_grad_norm=sourced(0.5, "ds.json:3"))
    assert single_process_settings({"a.yaml": plain, "b.yaml": clips}, config) == {
        "mixed_precision": "bf16",
        "max_grad_norm": "0.5",
    }
    said = Loaded(config=TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16"), origins={})
    assert single_process_settings({"a.yaml": plain}, said) == {}
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert single_process_settings({"a.yaml": plain, "b.yaml": owns}, config) is None


def test_thelast_error_is_found() -> None:
    assert last_error("step 1\n\nrank 0: train.yaml:3: lr: -1: must be above 0\n=====\n") == (
        "rank 0: train.yaml:3: lr: -1: must be above 0"
    )
    assert last_error("Traceback (most recent call last):\n  x\nValueError: no\nmore of it\n") == "ValueError: no"
    assert last_error("killed\n\n") == "killed"
    assert last_error("") == ""
    report = (
        "Traceback (most recent call last):\nChildFailedError: \nRoot Cause (first observed failure):\n[0]:\n  rank : 0"
    )
    assert last_error(f"{report}\n  traceback : a.yaml:5: lr: -1: no\n====\n") == "a.yaml:5: lr: -1: no"
    thrown = "Traceback (most recent call last):\n  x\n  ValueError: no\n"
    assert last_error(f"{report}\n  traceback : {thrown}\n====\n") == "ValueError: no"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["accel_configs/ddp.yaml", "--script", "no.py"], r"script: 'no.py': does not exist; give the script that"),
        (["accel_configs/ddp.yaml", "--to", "."], r"to: '\.': exists already"),
        (["accel_configs/ddp.yaml", "--global_batch_size", "63"], r"global_batch_size: 63"),
        (
            ["accel_configs/ddp.yaml", "--global_batch_size", "63", "--micro_batch_size", "21"],
            r"ddp.yaml:\d+.*: num_processes: 2: cannot cut the global batch of 63; set --global_batch_size",
        ),
        (["no.yaml"], r"no.yaml"),
    ],
)
def test_wrong_words(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run([*words, "--config", "examples/configs/digits_cnn.yaml"])
