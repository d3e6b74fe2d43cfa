"""Language models by a YAML alone have one curve: packed, adapted, fused, tied; their data is made once.

| promised | strategies and worlds | tests |
|---|---|---|
| A fine-tune has its task's defaults, and a launch file goes before them | ZeRO-2, DDP on 2 | test_a_fine_tune_has_its_tasks_defaults_and_a_launch_file_goes_before_them |
| A run that had other defaults resumes by its own config | one process | test_a_run_that_had_other_defaults_goes_on_by_its_own_config |
| The words that are hidden are the same on two processes | DDP on 2 | test_hidden_words_are_the_same_ones_on_two_processes |
| Seven kinds of model have the curve of one process | all on 2 (nightly) | test_fine_tuning_by_settings_has_the_curve_of_one_process |
| The first loss is that of plain transformers, each document alone | one process, all on 2 (nightly) | test_first_loss_is_that_of_plain_transformers_on_documents_alone |
| The export is a model or an adapter, with its tokenizer and card | FSDP2 on 2 (nightly) | test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer |
| Processes that prepare data at once share one result, and half of one is never used | 2 or 3 processes | test_processes_that_prepare_at_once_share_one_result, test_one_makes_it_and_all_find_it, test_what_a_killed_process_left_is_made_anew |
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
import torch.nn.functional as F
import yaml
from launchers import ROOT, STRATEGIES, Job, clean_environment, run
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

from trainer.data.order import epoch_order
from trainer.language import CausalLM
from trainer.language.packing import IGNORED

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


def by_defaults(folder: Path) -> list[str]:
    """The script and the config of a fine-tune that says nothing of rate, decay, schedule and
    clipping.
    """
    given = folder / "by_defaults"
    if not (given / "llama").exists():
        save_model(given / "llama")
        save_texts(given / "texts.jsonl")
    settings = {
        "model": str(given / "llama"),
        "data": str(given / "texts.jsonl"),
        "sequence_length": 96,
    }
    settings |= {"cache_dir": str(folder / "cache")}
    config = {
        "task": "trainer.language:CausalLM",
        "task_settings": settings,
        "max_steps": 4,
        "save_every": 2,
    }
    (folder / "defaults.yaml").write_text(
        yaml.safe_dump({**config, "global_batch_size": 4, "micro_batch_size": 2})
    )
    return ["examples/train.py", "--config", str(folder / "defaults.yaml"), "--log_every", "1"]


def under_file(file: Path, script: str) -> list[str]:
    return ["ranks", "2", script, "--deepspeed", str(file)]


def test_a_fine_tune_has_its_tasks_defaults_and_a_launch_file_goes_before_them(
    folder: Path,
) -> None:
    """The config that a run writes goes on with the same file, also where that replaces a default."""
    script, *words_of_config = by_defaults(folder)
    jobs = {}
    for name, clipping in (("open", {}), ("clips", {"gradient_clipping": 0.25})):
        (folder / f"{name}.json").write_text(
            json.dumps({"zero_optimization": {"stage": 2}, **clipping})
        )
        jobs[name] = run(
            [*under_file(folder / f"{name}.json", script), *words_of_config], folder / name
        ).ok()
    jobs["ddp"] = run([*words("ddp", script), *words_of_config], folder / "defaults-ddp").ok()
    for name in ("open", "ddp"):
        plan = jobs[name].plan
        assert (plan["lr"], plan["max_grad_norm"], plan["schedule"], plan["warmup_steps"]) == (
            2e-5,
            1.0,
            "linear",
            1,
        )
        assert plan["optimizer_settings"]["weight_decay"] == 0.0
        assert plan["origins"]["max_grad_norm"] == "default of CausalLM (max_grad_norm)"
    assert jobs["open"].losses == pytest.approx(jobs["ddp"].losses, rel=2e-6)
    clips = jobs["clips"]
    assert clips.plan["max_grad_norm"] == 0.25
    written = yaml.safe_load((clips.output_dir / "config.yaml").read_text())
    assert written["lr"] == 2e-5 and "max_grad_norm" not in written
    [early, _] = sorted((clips.output_dir / "checkpoints").glob("step*"))
    again = ["--config", str(clips.output_dir / "config.yaml"), "--resume", str(early)]
    resumed = run([*under_file(folder / "clips.json", script), *again], folder / "clips-again").ok()
    assert resumed.losses == clips.losses[2:] and resumed.plan["max_grad_norm"] == 0.25


def test_a_run_that_had_other_defaults_goes_on_by_its_own_config(folder: Path) -> None:
    """A config that leaves the keys open is refused with the values of both sides."""
    script, *config = by_defaults(folder)
    alone = words("single", script)
    before = [
        "--lr",
        "1e-3",
        "--weight_decay",
        "0.01",
        "--schedule",
        "null",
        "--max_grad_norm",
        "null",
    ]
    old = run([*alone, *config, *before], folder / "old").ok()
    [early, _] = sorted((old.output_dir / "checkpoints").glob("step*"))
    resume = ["--resume", str(early)]
    refused = run([*alone, *config, *resume], folder / "refused")
    assert refused.code == 2
    assert "lr: 0.001 -> 2e-05" in refused.err
    own = ["--config", str(old.output_dir / "config.yaml")]
    resumed = run([*alone, *own, *resume], folder / "old-again").ok()
    assert resumed.losses == old.losses[2:]


def test_hidden_words_are_the_same_ones_on_two_processes(folder: Path) -> None:
    alone, done = tuned("masked", "single", folder), tuned("masked", "ddp", folder)
    assert done.losses == pytest.approx(alone.losses, rel=2e-6) and done.plan["world_size"] == 2
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES)
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


def alone_loss(model: Any, row: dict[str, torch.Tensor]) -> tuple[float, int]:
    """Sum and count of the losses of a row, each of its documents alone in a plain transformers
    model.
    """
    starts = [*(row["position_ids"] == 0).nonzero().flatten().tolist(), len(row["input_ids"])]
    whole, count = 0.0, 0
    for start, end in itertools.pairwise(starts):
        labels = row["labels"][start:end]
        logits = model(input_ids=row["input_ids"][None, start:end]).logits[0].double()
        whole += F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").item()
        count += int((labels != IGNORED).sum())
    return whole, count


@pytest.mark.slow
@pytest.mark.parametrize("case", ["smollm2", "adapter", "experts"])
def test_first_loss_is_that_of_plain_transformers_on_documents_alone(
    case: str, folder: Path
) -> None:
    from transformers import AutoModelForCausalLM

    jobs = [tuned(case, strategy, folder) for strategy in ("single", *STRATEGIES)]
    given = yaml.safe_load((folder / f"{case}.yaml").read_text())["task_settings"]
    model: Any = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32).eval()
    train = (
        CausalLM(**{key: value for key, value in given.items() if key != "adapter"})
        .build_data()
        .train
    )
    step = [train[int(at)] for at in epoch_order(len(train), 0, 0)[: TUNING["global_batch_size"]]]
    with torch.no_grad():
        sums, counts = zip(*(alone_loss(model, row) for row in step), strict=True)
    assert sum(counts) > 100
    assert [job.losses[0] for job in jobs] == pytest.approx(
        [sum(sums) / sum(counts)] * len(jobs), rel=1e-6
    )


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
        card = (model / "README.md").read_text()
        assert (
            "\neval/loss: " in card and "\nstrategy: fsdp\n" in card and "\nworld_size: 2\n" in card
        )
        assert f"pipeline_tag: {pipeline}\n" in card
        if case in ("adapter", "experts"):
            assert json.loads((model / "adapter_config.json").read_text())["r"] == 4
            loaded = AutoPeftModelForCausalLM.from_pretrained(model)
            ranks = {
                tensor.shape[0] for name, tensor in loaded.named_parameters() if "lora_A" in name
            }
            assert loaded.peft_config and 4 in ranks
        else:
            loaded = getattr(transformers, auto_class).from_pretrained(model)
            assert (
                type(loaded).__name__
                == json.loads((model / "config.json").read_text())["architectures"][0]
            )


# Data is prepared once, whoever asks for it


def test_processes_that_prepare_at_once_share_one_result(tmp_path: Path) -> None:
    text = corpora.words(tmp_path / "text.txt", 50_000)
    code = f"""
import time
import llama_stdlib
made, write = [], llama_stdlib._write
def slow_write(*arguments, **settings):
    made.append(1)
    time.sleep(0.5)  # the other process comes meanwhile
    write(*arguments, **settings)
llama_stdlib._write = slow_write
print("ready", flush=True)
input()
task = llama_stdlib.LlamaStdlib(corpus={str(text)!r}, vocab_size=2000, cache_dir={str(tmp_path / "cache")!r})
data = task.build_data()
print(len(made), len(data.train), data.train.tokens.sum())
"""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": corpora.ENVIRONMENT,
    }
    started = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 2
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0].split() for process in started]
    assert sorted(made for made, *_ in printed) == ["0", "1"], "one makes it, the other waits"
    assert printed[0][1:] == printed[1][1:]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


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
