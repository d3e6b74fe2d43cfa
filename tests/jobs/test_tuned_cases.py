"""Fine-tunes and preferences by settings have one curve under every strategy, and go on under another.

| promised | strategies and worlds | tests |
|---|---|---|
| Packed texts, conversations, words that are hidden, classes, rows of tokens, pairs of texts, experts, adapters, DoRA, new tokens, recomputed and compiled layers, 4 bits, and DPO, ORPO, SimPO and reward models with each kind of reference have the curve, the metrics and the export of one process, with uneven lengths, accumulation and the end of an epoch | ZeRO-3 on 3; all on 2 and 3, HSDP on 4, ZeRO-3 with offload on 2 (nightly) | test_settings_have_the_curve_of_one_process |
| Each goes on under another strategy, with the log-probabilities that were computed once | ZeRO-3 on 3 to FSDP2 on 2; each to the next (nightly) | test_a_run_goes_on_under_another_strategy |
| Keys that save memory or time leave the curve as it is | one process (nightly) | test_keys_that_save_memory_or_time_leave_the_curve |
| The adapter of DPO on the adapter of a fine-tune, merged and saved by other packages, has the evaluation of the run | ZeRO-3 on 3 | test_the_merged_model_has_the_evaluation_of_the_run |
| Neither a checkpoint nor an export has the reference of DPO | ZeRO-3 on 3 | test_no_checkpoint_and_no_export_has_the_reference |
| The export is a model or an adapter, with its tokenizer and card | FSDP2 on 2 (nightly) | test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer |
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from launchers import STRATEGIES, Job, json_in, launch_file, slow_but, trained
from preferences import TEMPLATE, formula, preferences
from safetensors.torch import load_file
from tiny_language import CONFIGS, VOCABULARY, tokenizer
from tuning import task_settings

GATHERS = "tests/workers/zero3_gathers.json"  # ZeRO-3 of parameters however small
CONFIG = {
    **{"micro_batch_size": 2, "global_batch_size": 12, "log_every": 1, "keep_last": 5},
    **{"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01, "max_grad_norm": 1.0, "schedule": "constant"},
}
PAIRS = {"data": "pairs.jsonl"}
CHATS = {"data": "chats.jsonl", "messages_column": "messages"}
OF_TEXTS = {"task": "SequenceClassifier", "text_pair_column": "other"}
START = {
    **{"task": "DPO", **PAIRS, "evaluation": "pairs.jsonl", "model": "lora"},
    **{"template": TEMPLATE, "sequence_length": 128},
}
IN_4_BITS = {"r": 4, "quantize": "nf4"}
ENDS = {"r": 4, "trained": ["embed_tokens", "lm_head"], "rslora": True}
# Settings of each case, by default of a CausalLM on packed texts.
QUICK: dict[str, dict[str, Any]] = {
    "masked": {"task": "MaskedLM", "model": "bert", "mask_probability": 0.3},
    "dora": {"adapter": {"r": 4, "dora": True}},
    "several": {
        **OF_TEXTS,
        "data": "several.jsonl",
        "problem_type": "multi_label_classification",
    },
    "words": {"data": "words.jsonl", "new_tokens": ["<|think|>", "<|done|>"], "adapter": ENDS},
    "frozen": {"task": "DPO", **PAIRS, "loss": "fused"},
    "once": {"task": "DPO", **PAIRS, "reference": "computed_once", "objective": "ipo"},
    "orpo": {"task": "DPO", **PAIRS, "objective": "orpo", "loss": "fused"},
    "head": {
        **{"task": "DPO", **PAIRS, "loss": "fused"},
        "adapter": {"r": 4, "trained": ["lm_head"]},
    },
    "reward": {"task": "RewardModel", **PAIRS, "sequence_length": 128},
    "start": START,
}
SAVING: dict[str, dict[str, Any]] = {
    "recomputed": {"activation_checkpointing": True},
    "every second layer": {"activation_checkpointing": 2},
    "eager": {"attention": "eager"},
    "recomputed adapter": {"activation_checkpointing": True, "adapter": {"r": 4}},
    "recomputed in 4 bits": {"activation_checkpointing": True, "adapter": IN_4_BITS},
}
CASES: dict[str, dict[str, Any]] = {
    **QUICK,
    **SAVING,
    "llama": {},
    "tokens": {"data": "tokens.jsonl"},
    "number": {**OF_TEXTS, "data": "numbers.jsonl", "problem_type": "regression"},
    "simpo": {"task": "DPO", **PAIRS, "objective": "simpo", "beta": 2.0},
    "smollm2": {**CHATS, "model": "smollm2"},
    "adapter": {"adapter": {"r": 4}},
    "adapter of chats": {**CHATS, "adapter": {"r": 4}},
    "in 4 bits": {"adapter": IN_4_BITS},
    "experts": {"model": "mixtral", "adapter": {"r": 4}},
    "gpt2": {
        **{"model": None, "config": CONFIGS["gpt2"], "tokenizer": "llama"},
        **{"activation_checkpointing": 2, "loss": "fused"},
    },
    "classifier": {"task": "SequenceClassifier", "data": "labels.jsonl"},
    "without adapter": {
        **{"task": "DPO", **PAIRS, "adapter": {"r": 4}},
        **{"label_smoothing": 0.1, "sft_weight": 0.2},
    },
    "other": {
        **{"task": "DPO", **PAIRS, "adapter": {"r": 4}},
        **{"reference_model": "scaled", "objective": "robust"},
    },
    "start in 4 bits": {**START, "adapter": {"quantize": "nf4"}},
}
REWARDS = ("chosen_reward", "rejected_reward", "margin")
LAYOUTS = [
    *((name, world) for name in STRATEGIES for world in (2, 3)),
    *[("hsdp", 4), ("zero3_offload", 2)],
]
FIRST = ("zero3", 3)


def config_of(case: str, folder: Path, steps: int) -> dict[str, Any]:
    settings = {"model": "llama", "data": "texts.jsonl", "sequence_length": 96, "evaluation": 0.2}
    settings |= CASES[case]
    task = settings.pop("task", "CausalLM")
    config = {"task": f"trainer.language:{task}", "max_steps": steps, "save_every": steps // 2}
    # A new layer learns fast, and rounding grows with the rate.
    rate = {"lr": 1e-3} if task in ("RewardModel", "SequenceClassifier") else {}
    return {**CONFIG, **config, **rate, "task_settings": task_settings(folder, **settings)}


@cache
def tuned(how: str, world: int, folder: Path, is_quick: bool, start: str = "") -> dict[str, Job]:
    """Train the cases, or go on in the middle of those of a layout."""
    place = folder / f"{how}{world}-{is_quick}-{start}"
    steps = 6 if is_quick else 20
    configs = {}
    for name in QUICK if is_quick else CASES:
        configs[name] = config_of(name, folder, steps)
        if start:
            before = folder / f"{start}-{is_quick}-" / name
            configs[name]["resume"] = str(before / f"checkpoints/step-{steps // 2:08d}")
    if world == 4:
        configs = {name: {**config, "micro_batch_size": 1} for name, config in configs.items()}
    files = dict.fromkeys(configs, GATHERS) if how == "zero3" else {}
    return trained(how, place, configs, world=world, files=files)


def tensors(job: Job) -> dict[str, torch.Tensor]:
    files = sorted((job.output_dir / "model").glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def check_same(found: dict[str, Job], alone: dict[str, Job], since: int = 0) -> None:
    for name, job in found.items():
        one = alone[name]
        assert len(one.losses) == since + len(job.losses)
        first = max(since, 6)
        assert job.losses[: first - since] == pytest.approx(one.losses[since:first], rel=1e-6), name
        assert job.losses == pytest.approx(one.losses[since:], rel=2e-6), name
        # Later a nudge of the weights in the last place moves single norms by 1e-4 in one process.
        norms = job.column("grad_norm"), one.column("grad_norm")[since:]
        assert norms[0][: first - since] == pytest.approx(norms[1][: first - since], rel=1e-5), name
        assert norms[0] == pytest.approx(norms[1], rel=1e-3), name
        for key in REWARDS:
            rewards = pytest.approx(one.column(key)[since:], rel=1e-5, abs=2e-6)
            assert job.column(key) == rewards, (name, key)
        # At first the rewards of DPO are zero up to rounding.
        assert job.column("accuracy")[1:] == one.column("accuracy")[since + 1 :], name
        assert job.evaluation == pytest.approx(one.evaluation, rel=1e-5, abs=2e-6), name
        assert job.evaluation["eval/loss"] == pytest.approx(one.evaluation["eval/loss"], rel=1e-6)
        assert one.losses[-1] < one.losses[0], f"{name} learns"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("how", "world", "is_quick"),
    slow_but([(*FIRST, True)], [(*FIRST, True), *((*layout, False) for layout in LAYOUTS)]),
)
def test_settings_have_the_curve_of_one_process(
    how: str, world: int, is_quick: bool, folder: Path
) -> None:
    alone, found = (tuned(*of, folder, is_quick) for of in (("single", 1), (how, world)))
    check_same(found, alone)
    for name, job in found.items() if is_quick else ():
        ours, theirs = tensors(job), tensors(alone[name])
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5, msg=name)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("start", "is_quick"), slow_but([("zero3", True)], product(STRATEGIES, (True, False)))
)
def test_a_run_goes_on_under_another_strategy(start: str, is_quick: bool, folder: Path) -> None:
    alone, first = tuned("single", 1, folder, is_quick), tuned(start, 3, folder, is_quick)
    how = "fsdp" if start == "zero3" else STRATEGIES[STRATEGIES.index(start) - 1]
    found = tuned(how, 2, folder, is_quick, start=f"{start}3")
    check_same(found, alone, since=3 if is_quick else 10)
    logs = [(jobs["once"].output_dir / "log.txt").read_text() for jobs in (first, found)]
    assert "pairs are computed\n" in logs[0] and "log-probabilities" not in logs[1]


def check_saving(names: Iterable[str], jobs: dict[str, Job], alone: dict[str, Job]) -> None:
    for name in names:
        reference = "adapter" if "adapter" in name else "in 4 bits" if "4 bits" in name else "llama"
        assert jobs[name].losses == pytest.approx(alone[reference].losses, rel=1e-5), name
        assert tensors(jobs[name]).keys() == tensors(alone[reference]).keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["single", *STRATEGIES, "zero3_offload"])
def test_keys_that_save_memory_or_time_leave_the_curve(how: str, folder: Path) -> None:
    """Compiled as aot_eager traces, as inductor does, without a compiler's minutes."""
    alone = tuned("single", 1, folder, False)
    check_saving(SAVING, alone, alone)
    file = launch_file(folder / f"{how}-compiled.yaml", how)
    data = {**yaml.safe_load(file.read_text()), "dynamo_config": {"dynamo_backend": "aot_eager"}}
    file.write_text(yaml.safe_dump(data))
    # ZeRO-3 refuses to compile.
    compiled = {} if how.startswith("zero3") else {"llama": {}, **SAVING}
    configs = {name: config_of(name, folder, 20) for name in compiled}
    files = dict.fromkeys(configs, file)
    jobs = trained(how, folder / f"{how}-compiled", configs, files=files)
    assert all(job.plan["compile"] for job in jobs.values())
    check_saving(jobs, jobs, alone)


def merged(adapter: Path) -> Any:
    """The model of an adapter as peft merges, saves and transformers loads it, in float64."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    whole: Any = AutoPeftModelForCausalLM.from_pretrained(adapter)
    whole.merge_and_unload().save_pretrained(adapter.parent / "merged")
    loaded: Any = AutoModelForCausalLM.from_pretrained(adapter.parent / "merged")
    return loaded.double()


def test_the_merged_model_has_the_evaluation_of_the_run(folder: Path) -> None:
    done = tuned(*FIRST, folder, True)["start"]
    policy, reference = merged(done.output_dir / "model"), merged(folder / "given/lora")
    loss, metrics = formula(policy, reference, tokenizer(), preferences(50))
    assert done.evaluation["eval/loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert done.evaluation["eval/margin"] == pytest.approx(metrics["margin"], abs=1e-6)


def test_no_checkpoint_and_no_export_has_the_reference(folder: Path) -> None:
    done = tuned(*FIRST, folder, True)
    for name, ours in (("frozen", "/policy."), ("start", ".default.")):
        files = done[name].output_dir.glob("checkpoints/*/rank-*.safetensors")
        stored = {key for file in files for key in load_file(file)}
        assert any(ours in key for key in stored), name
        assert not any("reference" in key for key in stored), name
    given = {"frozen": "llama/model", "start": "lora/adapter_model"}
    for name, file in given.items():
        assert tensors(done[name]).keys() == load_file(folder / f"given/{file}.safetensors").keys()


# The transformers class that loads what a task leaves, and what the Hub calls such models.
KINDS = {
    "CausalLM": ("AutoModelForCausalLM", "text-generation"),
    "SequenceClassifier": ("AutoModelForSequenceClassification", "text-classification"),
    "MaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning:peft.*")  # of its own defaults for experts
def test_what_is_exported_is_a_model_or_an_adapter_with_its_tokenizer(folder: Path) -> None:
    import transformers
    from peft import AutoPeftModelForCausalLM

    loaded: Any
    for name, job in tuned("fsdp", 2, folder, False).items():
        kind = CASES[name].get("task", "CausalLM")
        if kind not in KINDS or "new_tokens" in CASES[name]:
            continue
        model = job.output_dir / "model"
        auto_class, pipeline = KINDS[kind]
        assert len(transformers.AutoTokenizer.from_pretrained(model)) == VOCABULARY
        assert f"pipeline_tag: {pipeline}\n" in (model / "README.md").read_text()
        if "adapter" in CASES[name]:
            assert json_in(model / "adapter_config.json")["r"] == 4
            loaded = AutoPeftModelForCausalLM.from_pretrained(model)
            assert loaded.peft_config and any("lora_A" in key for key in loaded.state_dict())
        else:
            loaded = getattr(transformers, auto_class).from_pretrained(model)
            assert type(loaded).__name__ == json_in(model / "config.json")["architectures"][0]
