"""``trainer parity``: its command line, its runs and its verdict."""

from __future__ import annotations

from dataclasses import replace

from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands import parity
from trainer.launching.request import Request


def test_one_process_gets_the_settings_of_launch_files() -> None:
    config = TrainConfig(task="a:B", max_steps=1)
    plain = Request(
        strategy="ddp",
        strategy_origin=origin("a.yaml:1"),
        mixed_precision=sourced("bf16", "a.yaml:2"),
    )
    clips = replace(
        plain, strategy="zero2", mixed_precision=None, max_grad_norm=sourced(0.5, "ds.json:3")
    )
    words = ["--mixed_precision=bf16", "--max_grad_norm=0.5"]
    assert parity._one_process([plain, clips], config) == words
    said = TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16")
    assert parity._one_process([plain], said) == []
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert parity._one_process([plain, owns], config) is None
