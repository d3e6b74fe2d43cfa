"""The path of a fine-tune, an adapter and then preferences on top of the adapter, is that of peft.

| promised | strategies and worlds | tests |
|---|---|---|
| DPO on an adapter begins at log 2 and has the steps of peft by hand and the curve of one process, with accumulation | one process, ZeRO-3 on 2; all on 2 (nightly) | test_dpo_on_an_adapter_has_the_curve_of_one_process |
| A run on an adapter goes on under another strategy | FSDP2 on 2, then ZeRO-3 on 2 | test_a_run_on_an_adapter_goes_on_under_another_strategy |
| The adapter of the end, merged and saved by other packages, has the evaluation of the run | ZeRO-3 on 2 | test_the_merged_model_has_the_evaluation_of_the_run |
| New tokens and the layers that are trained whole beside an adapter have the curve of one process, and the export is loaded by peft | ZeRO-3 on 2; all on 2 (nightly) | test_new_tokens_have_the_curve_of_one_process |
| DPO on an adapter with the weights below in 4 bits has the curve of one process | all on 2 (nightly) | test_dpo_on_an_adapter_in_4_bits_has_the_curve_of_one_process |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from launchers import STRATEGIES, Job, command, run, some_quick
from preferences import TEMPLATE, formula, preferences, save_preferences, two_steps
from tiny_language import (
    VOCABULARY,
    paragraphs,
    save_model,
    save_rows,
    save_texts,
    tokenizer,
)
from transformers import AutoModelForCausalLM

STEPS, PAIRS, LR = 4, 8, 3e-3
RUN = {
    "max_steps": STEPS,
    "micro_batch_size": 2,
    "global_batch_size": PAIRS,
    "log_every": 1,
    "save_every": 2,
    "lr": LR,
    "eps": 1e-4,
    "weight_decay": 0.0,
    "schedule": "constant",
    "max_grad_norm": 1.0,
}
FIRST = {"r": 4, "alpha": 16.0}
NF4 = {"quantize": "nf4"}


def words_of(strategy: str) -> list[str]:
    return command("ranks", strategy, 0 if strategy == "single" else 2)


def trained(
    out: Path, words: list[str], task: str, folder: Path, settings: dict[str, Any], *more: str
) -> Job:
    file = out.with_suffix(".yaml")
    settings = {"cache_dir": str(folder / "cache"), "sequence_length": 128, **settings}
    file.write_text(
        yaml.safe_dump({"task": f"trainer.language:{task}", "task_settings": settings, **RUN})
    )
    return run([*words, "--config", str(file), *more], out).ok()


@cache
def adapter(kind: str, folder: Path) -> Path:
    """The adapter that a supervised training of one process has left."""
    if not (folder / "llama").exists():
        save_model(folder / "llama")
        save_preferences(folder / "pairs.jsonl", PAIRS)
        save_texts(folder / "texts.jsonl")
    settings = {
        "model": str(folder / "llama"),
        "data": str(folder / "texts.jsonl"),
        "adapter": FIRST | (NF4 if kind == "nf4" else {}),
    }
    out = folder / f"first-{kind}"
    return trained(out, words_of("single"), "CausalLM", folder, settings).output_dir / "model"


def preferring(
    kind: str, words: list[str], folder: Path, out: Path, *more: str, **settings: Any
) -> Job:
    settings |= {
        "model": str(adapter(kind, folder)),
        "data": str(folder / "pairs.jsonl"),
        "evaluation": str(folder / "pairs.jsonl"),
        "template": TEMPLATE,
    }
    if kind == "nf4":
        settings["adapter"] = NF4
    return trained(out, words, "DPO", folder, settings, *more)


@cache
def preferred(kind: str, strategy: str, folder: Path) -> Job:
    return preferring(kind, words_of(strategy), folder, folder / f"{kind}-{strategy}")


def merged(adapter: Path) -> Any:
    """The model of an adapter as peft merges, saves and transformers loads it, in float64."""
    from peft import AutoPeftModelForCausalLM

    whole: Any = AutoPeftModelForCausalLM.from_pretrained(adapter)
    whole.merge_and_unload().save_pretrained(adapter.parent / "merged")
    loaded: Any = AutoModelForCausalLM.from_pretrained(adapter.parent / "merged")
    return loaded.double()


@cache
def by_hand(folder: Path) -> list[dict[str, float]]:
    from peft import PeftModel

    base: Any = AutoModelForCausalLM.from_pretrained(folder / "llama")
    first = adapter("plain", folder)
    policy = PeftModel.from_pretrained(base, first, is_trainable=True).eval()
    found: list[dict[str, float]] = two_steps(
        policy, merged(first), tokenizer(), preferences(PAIRS), LR
    )
    return found


def same_curve(kind: str, strategy: str, folder: Path) -> Job:
    alone, done = preferred(kind, "single", folder), preferred(kind, strategy, folder)
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    assert done.losses[0] == pytest.approx(0.693147, abs=1e-6)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=1e-6)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5, abs=1e-6)
    assert done.losses[-1] < done.losses[0] - 0.01, "it learns"
    return done


@pytest.mark.parametrize("strategy", some_quick("zero3"))
def test_dpo_on_an_adapter_has_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    done = same_curve("plain", strategy, folder)
    theirs = by_hand(folder)
    assert done.losses[:2] == pytest.approx([row["loss"] for row in theirs], rel=1e-6)
    norms = [row["grad_norm"] for row in done.rows if "grad_norm" in row]
    assert norms[:2] == pytest.approx([row["grad_norm"] for row in theirs], rel=1e-5)


def test_a_run_on_an_adapter_goes_on_under_another_strategy(folder: Path) -> None:
    out = folder / "resumed"
    half = preferring("plain", words_of("fsdp"), folder, out, "--stop_at", "2")
    assert (half.plan["strategy"], half.plan["world_size"]) == ("fsdp", 2)
    done = preferring("plain", words_of("zero3"), folder, out, "--resume", "auto")
    assert "step-00000002" in done.out
    alone = preferred("plain", "single", folder)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=1e-6)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5, abs=1e-6)


def test_the_merged_model_has_the_evaluation_of_the_run(folder: Path) -> None:
    done = preferred("plain", "zero3", folder)
    policy = merged(done.output_dir / "model")
    reference = merged(adapter("plain", folder))
    loss, metrics = formula(policy, reference, tokenizer(), preferences(PAIRS))
    assert done.evaluation["eval/loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert done.evaluation["eval/margin"] == pytest.approx(metrics["margin"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_dpo_on_an_adapter_in_4_bits_has_the_curve_of_one_process(
    strategy: str, folder: Path
) -> None:
    same_curve("nf4", strategy, folder)


NEW = ["<|think|>", "<|done|>"]


@cache
def with_new_tokens(strategy: str, folder: Path) -> Job:
    adapter("plain", folder)  # the model
    words = [{"text": f"<|think|>{text}<|done|>"} for text in paragraphs(40)]
    settings = {
        "model": str(folder / "llama"),
        "data": str(save_rows(folder / "words.jsonl", words)),
        "evaluation": 0.2,
        "new_tokens": NEW,
        "adapter": {"r": 4, "trained": ["embed_tokens", "lm_head"], "rslora": True},
    }
    return trained(folder / f"words-{strategy}", words_of(strategy), "CausalLM", folder, settings)


@pytest.mark.parametrize("strategy", some_quick("zero3"))
def test_new_tokens_have_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    alone, done = with_new_tokens("single", folder), with_new_tokens(strategy, folder)
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=1e-6)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-6)
    assert done.losses[-1] < done.losses[0] - 0.05, "it learns"

    ours, theirs = (
        AutoPeftModelForCausalLM.from_pretrained(job.output_dir / "model") for job in (done, alone)
    )
    before = AutoModelForCausalLM.from_pretrained(folder / "llama").get_input_embeddings().weight
    rows = ours.get_input_embeddings().weight
    assert len(rows) == VOCABULARY + len(NEW)
    torch.testing.assert_close(rows, theirs.get_input_embeddings().weight, rtol=0, atol=2e-5)
    moved = (rows[VOCABULARY:] - before.mean(0)).abs()
    assert 0 < moved.max() <= STEPS * LR, "the rows of new tokens begin as the mean"
