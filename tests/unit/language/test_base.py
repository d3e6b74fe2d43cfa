"""Settings of the tasks: what fits together, what code may give, which share is for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_language import CONFIGS, save_model

from trainer import ConfigError
from trainer.language import Adapter, CausalLM


def test_evaluation_keeps_a_share_of_the_documents(
    task: Callable[..., CausalLM],
) -> None:
    data = task(evaluation=0.25, packing="none", long_documents="cut").build_data()
    assert (len(data.train), len(data.evaluation)) == (90, 30)


def test_one_or_several_evaluation_sets_are_given(
    task: Callable[..., CausalLM], texts: Path
) -> None:
    assert len(task(evaluation=str(texts), packing="none").build_data().evaluation) == 172
    sets = {"prose": str(texts), "code": str(texts)}
    evaluation = task(evaluation=sets, packing="none").build_data().evaluation
    assert {name: len(rows) for name, rows in evaluation.items()} == dict.fromkeys(sets, 172)
    with pytest.raises(ConfigError, match=r"task_settings\.evaluation: .*no-such-file"):
        task(evaluation={"prose": "no-such-file.jsonl"}).build_data()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "give model .*, or config"),
        ({"config": {"model_type": "llama"}}, "give model .*, or config"),
        ({"model": None, "config": {"model_type": "llama"}}, "config .* and tokenizer"),
    ],
)
def test_settings_that_do_not_fit_together(
    settings: dict[str, Any], message: str, task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(ValueError, match=message):
        task(**settings)


def test_settings_from_code_are_read_like_those_of_a_yaml(
    task: Callable[..., CausalLM],
) -> None:
    made = task(adapter={"r": 4}, sequence_length=32)
    assert made.adapter == Adapter(r=4)
    assert task(adapter=Adapter(r=4)) == task(adapter={"r": 4})

    @dataclass(frozen=True, kw_only=True)
    class Own(CausalLM):
        reward: Callable[[int], int] = abs

    assert Own(model="m", data="d", reward=round).reward is round


def test_a_notice_is_kept_once(task: Callable[..., CausalLM]) -> None:
    causal = task()
    causal.note("first", "second")
    causal.note("first")
    assert causal.notices() == ["first", "second"]


def test_perplexity_is_exp_of_the_mean_loss_and_stays_finite(task: Callable[..., CausalLM]) -> None:
    assert task().summarize({"loss": 2.0})["perplexity"] == pytest.approx(7.389056)
    assert task().summarize({"loss": 1e9})["perplexity"] < float("inf")


def test_a_task_is_evaluated_with_the_whole_model_of_another_folder(
    task: Callable[..., CausalLM], llama: Path, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other")
    adapted = task(adapter={"r": 2}).for_model(other)
    assert adapted is not None and (adapted.model, adapted.adapter) == (str(other), None)
    assert adapted.tokenizer is None, "that of the other folder"

    scratch = task(model=None, config=CONFIGS["llama"], tokenizer=str(llama)).for_model(other)
    assert scratch is not None and (scratch.model, scratch.config) == (str(other), None)

    (other / "adapter_config.json").write_text("{}")
    assert task().for_model(other) is None, "an adapter belongs to the task's own model"
    assert task().for_model(tmp_path) is None
