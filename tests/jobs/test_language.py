"""Language models by a YAML alone have one curve: packed, adapted, fused, tied; their data is made once.

| promised | strategies and worlds | tests |
|---|---|---|
| Seven kinds of model have the curve of one process | words that are hidden, DDP on 2; all on 2 (nightly) | test_fine_tuning_by_settings_has_the_curve_of_one_process |
| The export is a model or an adapter, with its tokenizer and card | FSDP2 on 2 (nightly) | test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer |
| Processes that prepare data at once share one result, and half of one is never used | 2 or 3 processes | test_one_makes_it_and_all_find_it, test_what_a_killed_process_left_is_made_anew |
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT, STRATEGIES, Job, clean_environment, json_in, run
from small_examples import words
from tiny_language import (
    CONFIGS,
    VOCABULARY,
    conversation,
    paragraphs,
    save_masked,
    save_model,
    save_rows,
    save_texts,
)

STEPS = 12
TUNING = {
    "micro_batch_size": 2,
    "global_batch_size": 8,
    "max_steps": STEPS,
    "log_every": 1,
    "lr": 3e-3,
    "eps": 1e-4,
}
TUNING |= {
    "weight_decay": 0.01,
    "max_grad_norm": 0,
    "schedule": "constant",
}  # not those of a fine-tuner
# SmolLM2-135M, cut to two of its thirty layers and to few words: tied, three query heads to each of
# keys and values.
SMOLLM2 = {
    **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "rms_norm_eps": 1e-5},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True},
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
}
# Settings of each case; language models are packed.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model": "llama"},
    "recomputed": {"model": "llama", "activation_checkpointing": True},
    "smollm2": {"model": "smollm2", "messages_column": "messages", "data": "chats.jsonl"},
    "adapter": {
        "model": "llama",
        "adapter": {"r": 4},
        "messages_column": "messages",
        "data": "chats.jsonl",
    },
    "experts": {"model": "mixtral", "adapter": {"r": 4}},
    "gpt2": {
        "config": CONFIGS["gpt2"],
        "tokenizer": "llama",
        "activation_checkpointing": 2,
        "loss": "fused",
    },
    "classifier": {"model": "llama", "data": "labels.jsonl"},
    "masked": {"model": "bert", "mask_probability": 0.3},
}
# The task of a case, the transformers class that loads what it leaves, and what the Hub calls such
# models.
KINDS = {
    "": ("CausalLM", "AutoModelForCausalLM", "text-generation"),
    "classifier": (
        "SequenceClassifier",
        "AutoModelForSequenceClassification",
        "text-classification",
    ),
    "masked": ("MaskedLM", "AutoModelForMaskedLM", "fill-mask"),
}


@cache
def tuned(case: str, strategy: str, folder: Path) -> Job:
    given = folder / "given"
    if not given.exists():
        save_model(given / "llama")
        save_model(given / "mixtral", "mixtral")
        save_model(given / "smollm2", **SMOLLM2)
        save_masked(given / "bert")
        save_texts(given / "texts.jsonl")
        texts = paragraphs(80)
        chats = [conversation(texts[at][:60], texts[at + 1]) for at in range(0, 80, 2)]
        save_rows(given / "chats.jsonl", chats)
        save_rows(
            given / "labels.jsonl",
            [{"text": text[:200], "label": "the" in text[:40]} for text in texts],
        )
    settings = {"data": "texts.jsonl", "evaluation": 0.1, "sequence_length": 96, **CASES[case]}
    for key in ("data", "model", "tokenizer"):
        if key in settings:
            settings[key] = str(given / settings[key])
    settings["cache_dir"] = str(folder / "cache")
    config = {
        "task": f"trainer.language:{KINDS.get(case, KINDS[''])[0]}",
        "task_settings": settings,
        **TUNING,
    }
    file = folder / f"{case}.yaml"
    file.write_text(yaml.safe_dump(config))
    return run(
        [*words(strategy, "examples/train.py"), "--config", str(file)],
        folder / f"{case}-{strategy}",
    ).ok()


# Whether the hidden words are the same ones on two processes is a quick test.
@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        pytest.param(*pair, marks=() if pair == ("masked", "ddp") else pytest.mark.slow)
        for pair in itertools.product(CASES, STRATEGIES)
    ],
)
def test_fine_tuning_by_settings_has_the_curve_of_one_process(
    case: str, strategy: str, folder: Path
) -> None:
    alone, done = tuned(case, "single", folder), tuned(case, strategy, folder)
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=2e-6)
    norms, theirs = (
        [row["grad_norm"] for row in job.rows if "grad_norm" in row] for job in (done, alone)
    )
    assert norms == pytest.approx(theirs, rel=1e-5)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-5)
    assert done.losses[-1] < done.losses[0] - (
        0.02 if case in ("adapter", "experts", "classifier") else 0.3
    ), "it learns"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning:peft.*")  # of its own defaults for experts
def test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer(folder: Path) -> None:
    import transformers
    from peft import AutoPeftModelForCausalLM

    loaded: Any
    for case in CASES:
        model = tuned(case, "fsdp", folder).output_dir / "model"
        _, auto_class, pipeline = KINDS.get(case, KINDS[""])
        assert len(transformers.AutoTokenizer.from_pretrained(model)) == VOCABULARY
        assert f"pipeline_tag: {pipeline}\n" in (model / "README.md").read_text()
        if case in ("adapter", "experts"):
            assert json_in(model / "adapter_config.json")["r"] == 4
            loaded = AutoPeftModelForCausalLM.from_pretrained(model)
            ranks = {
                tensor.shape[0] for name, tensor in loaded.named_parameters() if "lora_A" in name
            }
            assert loaded.peft_config and 4 in ranks
        else:
            loaded = getattr(transformers, auto_class).from_pretrained(model)
            assert type(loaded).__name__ == json_in(model / "config.json")["architectures"][0]


# Data is prepared once, whoever asks for it


MAKER = """
import os, sys, time
from pathlib import Path
from trainer import prepare_once

cache = Path(sys.argv[1])

def make(folder):
    with open(cache / "calls", "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    (folder / "half").write_text("one")
    print("half", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "whole").write_text("two")

print(prepare_once(cache, ["format 1", {"rows": 3}], make), flush=True)
"""


def ask(cache: Path, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MAKER, str(cache), str(seconds)]
    return subprocess.Popen(
        words, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> Path:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return Path(out.splitlines()[-1])


def test_one_makes_it_and_all_find_it(tmp_path: Path) -> None:
    folders = {answer(process) for process in [ask(tmp_path, 1.0) for _ in range(3)]}
    [folder] = folders
    assert sorted(os.listdir(folder)) == ["half", "whole"]
    assert len((tmp_path / "calls").read_text().split()) == 1


def test_what_a_killed_process_left_is_made_anew(tmp_path: Path) -> None:
    killed = ask(tmp_path, 60.0)
    assert killed.stdout is not None and killed.stdout.readline() == "half\n"
    waiting = ask(tmp_path, 0.0)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert sorted(os.listdir(answer(waiting))) == ["half", "whole"]
    assert len((tmp_path / "calls").read_text().split()) == 2
