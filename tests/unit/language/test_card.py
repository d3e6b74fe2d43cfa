"""The card of an exported model: what it was made from, by which run, and its evaluation."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from one_process import checkpoint, fit

from trainer.commands import cli
from trainer.language import Adapter, CausalLM
from trainer.language.card import TRAINING


def test_card_describes_the_whole_run_up_to_its_step(
    task: Callable[..., CausalLM], tmp_path: Path, llama: Path, texts: Path
) -> None:
    settings = {"evaluation": 0.1, "adapter": Adapter(r=4)}
    trainer = fit(tmp_path / "run", task(**settings), max_steps=4, micro_batch_size=2)
    card = (tmp_path / "run/model/README.md").read_text()
    tokens = trainer.meter.totals["trained_tokens"]
    assert 500 < tokens < trainer.meter.totals["tokens"] == 4 * 2 * 128, "positions of all rows"
    for part in (
        "library_name: peft",
        f"base_model: {llama}",
        f"data: {texts}",
        "r: 4",
        "run_name: Odd-single-1",
        "strategy: single",
        "world_size: 1",
        "compute: fp32",
        "global_batch_size: 2",
        "step: 4",
        f"tokens: {tokens}",
        "seconds: ",
        "samecurve: ",
        f"eval/loss: {trainer.last_evaluation['eval/loss']}",
    ):
        assert part in card

    earlier = checkpoint(tmp_path / "run", 2)
    assert cli.main(["export", str(earlier), "--to", str(tmp_path / "two")]) == 0
    of_two = (tmp_path / "two/README.md").read_text()
    assert "step: 2\n" in of_two
    assert not any(part in of_two for part in ("## Evaluation", f"tokens: {tokens}"))

    shutil.rmtree(checkpoint(tmp_path / "run", 4))
    resumed = fit(
        tmp_path / "run", task(**settings), max_steps=4, micro_batch_size=2, resume="auto"
    )
    assert 0 < resumed.meter.totals["trained_tokens"] < tokens, (
        "another process trained the first two steps"
    )
    again = (tmp_path / "run/model/README.md").read_text()
    assert f"tokens: {tokens}" in again and "step: 4\n" in again


def test_no_text_of_a_run_ends_a_block_of_its_card(task: Callable[..., CausalLM]) -> None:
    """A name may come from somebody else. A heading or a tag in it would be the Hub's page."""
    evil = "x |\n\n```\n\n# heading\n<script>alert(1)</script>"
    run = dict.fromkeys(TRAINING) | {"run_name": evil, "last_evaluation": {f"eval/{evil}": 1.0}}
    card = task().model_card(run)
    fence = ""
    for line in card.splitlines():
        mark = re.match(r" {0,3}(`{3,})(yaml)?$", line)
        if mark and (not fence or len(mark[1]) >= len(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            assert "heading" not in line and "script" not in line
    assert "alert" in card and not fence
