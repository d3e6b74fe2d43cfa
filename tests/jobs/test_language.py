"""Language models by a YAML alone: one curve under every strategy, packed, adapted, fused, tied."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import STRATEGIES, Job, run
from small_examples import words
from tiny_language import CONFIGS, VOCABULARY, conversation, paragraphs, save_model, save_rows, save_texts

STEPS = 12
TUNING = {"micro_batch_size": 2, "global_batch_size": 8, "max_steps": STEPS, "log_every": 1, "lr": 3e-3, "eps": 1e-4}
# Settings of each case; language models are packed.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model": "llama"},
    "adapter": {"model": "llama", "adapter": {"r": 4}, "messages_column": "messages", "data": "chats.jsonl"},
    "gpt2": {"config": CONFIGS["gpt2"], "tokenizer": "llama", "activation_checkpointing": 2, "loss": "fused"},
    "classifier": {"model": "llama", "data": "labels.jsonl"},
}


@cache
def tuned(case: str, strategy: str, folder: Path) -> Job:
    given = folder / "given"
    if not given.exists():
        save_model(given / "llama")
        save_texts(given / "texts.jsonl")
        texts = paragraphs(80)
        chats = [conversation(texts[at][:60], texts[at + 1]) for at in range(0, 80, 2)]
        save_rows(given / "chats.jsonl", chats)
        save_rows(given / "labels.jsonl", [{"text": text[:200], "label": "the" in text[:40]} for text in texts])
    settings = {"data": "texts.jsonl", "evaluation": 0.1, "sequence_length": 96, **CASES[case]}
    for key in ("data", "model", "tokenizer"):
        if key in settings:
            settings[key] = str(given / settings[key])
    name = "SequenceClassifier" if case == "classifier" else "CausalLM"
    if name == "CausalLM":
        settings["cache_dir"] = str(folder / "cache")
    config = {"task": f"trainer.language:{name}", "task_settings": settings, **TUNING}
    file = folder / f"{case}.yaml"
    file.write_text(yaml.safe_dump(config))
    return run([*words(strategy, "examples/train.py"), "--config", str(file)], folder / f"{case}-{strategy}").ok()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
def test_fine_tuning_by_settings_has_the_curve_of_one_process(case: str, strategy: str, folder: Path) -> None:
    alone, done = tuned(case, "single", folder), tuned(case, strategy, folder)
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=2e-6)
    norms, theirs = ([row["grad_norm"] for row in job.rows if "grad_norm" in row] for job in (done, alone))
    assert norms == pytest.approx(theirs, rel=1e-5)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5)
    assert done.losses[-1] < done.losses[0] - (0.02 if case in ("adapter", "classifier") else 0.3), "it learns"


@pytest.mark.slow
def test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from trainer.language.adapters import load_adapted

    for case in CASES:
        model = tuned(case, "fsdp", folder).output_dir / "model"
        assert len(AutoTokenizer.from_pretrained(model)) == VOCABULARY
        card = (model / "README.md").read_text()
        assert "| loss |" in card and "| strategy | fsdp |" in card and "| processes | 2 |" in card
        assert f"pipeline_tag: text-{'classification' if case == 'classifier' else 'generation'}" in card
        if case == "adapter":
            assert json.loads((model / "adapter_config.json").read_text())["r"] == 4
            assert load_adapted(str(model)).peft_config
        else:
            kind = AutoModelForSequenceClassification if case == "classifier" else AutoModelForCausalLM
            loaded: Any = kind.from_pretrained(model)
            assert type(loaded).__name__ == json.loads((model / "config.json").read_text())["architectures"][0]
