"""Models and tasks of users have the numbers of one process, or end with one clear line everywhere.

| promised | strategies and worlds | tests |
|---|---|---|
| Some fifty models and tasks have one process's numbers, or are refused | all on 2 | test_what_users_bring_has_the_numbers_of_one_process |
| Gradients that no exchange would reach are right, or refused | all on 2 | test_gradients_that_no_exchange_would_reach_are_right_or_refused |
| FSDP2 ranks that call different blocks are told the key that helps | FSDP2 on 2 | test_fsdp_ranks_that_call_different_blocks_end_with_the_key_that_helps |
| A parameter that only one rank uses is named | DDP on 2 | test_a_parameter_that_one_rank_does_not_use_ends_ddp_with_its_name |
| Exports have the names and buffers of the model, and are what peft and transformers load | one process, all on 2 | test_buffers_and_names_are_exported_as_the_model_has_them, test_an_adapted_model_is_exported_as_peft_loads_it, test_a_pretrained_model_of_bfloat16_is_exported_as_the_float32_that_it_has |
| A model that is filled after it was divided is that model | one process, all on 2 | test_a_model_that_is_filled_after_it_was_divided_has_the_numbers_of_a_loaded_one |
| Layers that a resume thaws are trained on | all on 2 | test_layers_that_are_thawed_by_a_resume_learn_on, test_layers_that_are_thawed_have_one_curve_under_all_stages_of_zero |
| Early stop ends at the same step | one process, all on 2 | test_early_stop_ends_at_the_same_step_on_one_process_and_on_two |

"All" is ZeRO-3, which asks most of a model, in the quick tests, and the others nightly. The models
and tasks are in ``tests/workers/brought_tasks.py`` and ``brought_language.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_language import hugging_face
from brought_tasks import Scalar
from launchers import Job, json_in, json_lines, some_quick, trained
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer import load_export
from trainer.commands.export import export_checkpoint
from trainer.strategies.tensors import canonical_state

CONFIG = {
    **{"global_batch_size": 8, "max_steps": 6, "lr": 0.01, "log_every": 1},
    "eps": 1e-4,  # far above rounding, of which Adam would take the sign
    # Files in bfloat16 would hide what differs, or round it apart.
    "export_dtype": "float32",
}
OWN = {"eps": 1e-8}  # of an optimizer of one's own, for which it is not meant
FREE = {"find_unused_parameters": True}
UNEVEN = {"sanity_evaluation": False}
BF16 = {**FREE, "micro_batch_size": 2, "mixed_precision": "bf16"}
LANGUAGE = "brought_language:Language"
# Settings of each case, whose task has its name, if they name no other.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "past_the_wrapper": {},
    "past_the_wrapper_accumulated": {"task": "PastTheWrapper", "micro_batch_size": 2},
    "unused": {**FREE, "weight_decay": 0.1},
    "unused_unsaid": {"task": "Unused", "weight_decay": 0.1},
    "unused_accumulated_bf16": {"task": "Unused", **BF16},
    "dropped": {},
    "dropped_accumulated": {"task": "Dropped", "micro_batches": 2},
    "dropped_accumulated_offloaded": {"task": "Dropped", "micro_batches": 2},
    "teacher": {"callbacks": ["Follow"], "eval_every": 2},
    "changed_in_place": {"task": "Plain", "callbacks": ["Clamp"], "eval_every": 1},
    "changed_in_forward": {},
    "data_in_forward": {},
    "data_of_callback": {"task": "Plain", "callbacks": ["Clip"]},
    "filled_by_callback": {"task": "Plain", "callbacks": ["Fill"]},
    "read_by_callback": {"task": "Plain", "callbacks": ["Measure"]},
    "seen_by_callback": {"task": "Plain", "callbacks": ["See"]},
    "penalty": {**FREE, "micro_batch_size": 2},
    "caught": {"callbacks": ["Evaluates"], "ema_decay": 0.5},
    "caught_whole": {"task": "Caught", "callbacks": ["Evaluates"], "ema_decay": 0.5},
    "hooked": {},
    "signs": OWN,
    "reads": {},
    "reads_said": {"task": "Reads", **FREE},
    "masked_rows": {"micro_batch_size": 2, "weight_decay": 0.0},
    "parts_of_rank": {},
    "on_some_ranks": FREE,
    # With one, DeepSpeed's stage 3 ends it in its own words: it compares the modules that each
    # rank's first forward pass went through.
    "on_some_ranks_unsaid": {"task": "OnSomeRanks", **UNEVEN},
    "on_some_ranks_accumulated_bf16": {"task": "OnSomeRanks", **BF16},
    "in_any_order": {"micro_batch_size": 2},
    "scalar": {},
    "empty": {},
    "narrow": {},
    "narrow_bf16": {"task": "Narrow", "mixed_precision": "bf16"},
    "bent": {},
    "half_optimized": {**OWN, "max_grad_norm": 0.5},
    "frozen_in_optimizer": OWN,
    "frozen_later": {"task": "Plain", "callbacks": ["Freezes"]},
    "hooked_later": {"task": "Plain", "callbacks": ["Hangs"]},
    "names": {"evaluation_batch_size": 2},
    "reports": {},
    "frozen_norm": {},
    "buffers": {"micro_batch_size": 2, "max_steps": 8},
    "independent": {},
    "backward_inside": UNEVEN,
    "empty_layer": {},
    "experts": FREE,
    "expert_of_rank": UNEVEN,
    "plain_output": {},
    "plain_output_whole": {"task": "PlainOutput"},
    "replaced": {},
    "replaced_whole": {"task": "Replaced"},
    "patience": {
        **{"eval_every": 2, "best_metric": "eval/loss", "early_stop_patience": 2},
        "max_steps": 20,
    },
    "generating": {"task": "brought_language:Generating", "evaluation_batch_size": 2},
    # First a head alone, then from its checkpoint the whole model.
    "frozen_body": {"max_steps": 4, "save_every": 4},
    "thawed": {"task": "Plain", "max_steps": 8, "allow_config_change": True},
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    "bert": {"kind": "bert"},
    "bert_masked": {"kind": "bert_masked"},
    "pretrained": {"folder": "pretrained"},
    "blank": {"kind": "llama_tied", "blank": True},
    "blank_pretrained": {"folder": "pretrained", "blank": True},
    "blank_head": {"kind": "head", "folder": "pretrained", "blank": True},
    "lora": {"kind": "lora"},
    "lora_narrow": {"kind": "lora_narrow"},
    "lora_saved": {"kind": "lora_saved"},
}
OF_MODELS = {"blank": {"ema_decay": 0.9}, "bert_masked": FREE}
# Launch files in the place of others, for what they take that is no key of the training config.
WHOLE = ("penalty", "caught_whole", "plain_output_whole", "replaced_whole")
GATHERED = ("filled_by_callback", "read_by_callback", "seen_by_callback")
FILES: dict[str, dict[str, str]] = {
    "fsdp": dict.fromkeys(WHOLE, "tests/workers/fsdp_whole.yaml"),
    "zero3": dict.fromkeys(GATHERED, "tests/workers/zero3_gathers.json"),
}
for stage, place in (
    ("zero1", "tests/workers"),
    ("zero2", "tests/workers"),
    ("zero3", "accel_configs"),
):
    FILES.setdefault(stage, {})["dropped_accumulated_offloaded"] = f"{place}/{stage}_offload.yaml"

# What they end with, under every strategy that does not run them.
REFUSED = {
    "frozen_later": "LaunchError: 0.weight, 0.bias: frozen, thawed or replaced, while",
    "independent": "DataError: training_step returned a loss that no parameter has a part in. Compute the loss from the",
    "backward_inside": "DataError: training_step must not call backward",
    "replaced": "LaunchError: 2.weight: frozen, thawed or replaced, while",
    "replaced_whole": "LaunchError: 2.weight: frozen, thawed or replaced, while",
}
ZERO = ("zero1", "zero2", "zero3")
# What some strategies refuse: cases, strategies, and the line.
UNSAID = [
    (
        ["parts_of_rank"],
        ["ddp", "fsdp", *ZERO],
        "DataError: rank 1: the result of Task.weight is part 0, part 1, rank 0: the result of Task.weight is part 0",
    ),
    (["changed_in_place"], ZERO, "LaunchError: 0.bias: changed in place, while"),
    (
        ["hooked_later"],
        ["fsdp"],
        "LaunchError: 0.weight: a hook on its gradient would not be called: register it in",
    ),
    (["changed_in_forward"], ["fsdp", "zero3"], "LaunchError: teacher.0.bias, teacher"),
    (["data_in_forward"], ["fsdp", "zero3"], "LaunchError: teacher.0.bias, teacher."),
    (["data_of_callback"], ["fsdp", *ZERO], "0.weight"),
    (["filled_by_callback"], ["fsdp", "zero1", "zero2"], "0.weight"),
    (["filled_by_callback", "read_by_callback"], ["zero3"], "DataError: a callback reads or"),
    (
        ["past_the_wrapper", "past_the_wrapper_accumulated"],
        ["ddp"],
        "training_step did not call the model that it was given, so no gradient was averaged",
    ),
    (
        ["plain_output", "plain_output_whole"],
        ["fsdp"],
        "the loss goes past the outputs in which FSDP2 looks for tensors",
    ),
    (
        ["unused_unsaid"],
        ["ddp"],
        "the loss of this step does not depend on left.weight, left.bias",
    ),
    (
        ["dropped", "dropped_accumulated", "dropped_accumulated_offloaded"],
        ["ddp"],
        "the loss of this step does not depend on blocks.",
    ),
    (["reads"], ["zero3"], "DataError: training_step computes with a parameter outside of its"),
    (["empty", "empty_layer"], ["zero3"], "without elements: leave its layer out"),
    (["in_any_order"], ZERO, "ranks used different parameters"),
    (["on_some_ranks_unsaid"], ZERO, "only some ranks use two.bias, two.weight; set"),
]
# ZeRO-3 asks most of what is brought; the others are slow tests.
QUICK = some_quick("zero3")
# Slow tests: what strategies hardly touch, and cases beside another of their kind.
MORE = (
    "blank_head",
    "bert_masked",
    "bert",
    "bent",
    "frozen_norm",
    "half_optimized",
    "masked_rows",
    "names",
    "narrow",
    "plain",
    "plain_output_whole",
    "replaced_whole",
    "caught_whole",
    "dropped",
    "dropped_accumulated",
    "generating",
    "reports",
    "empty",
    "frozen_in_optimizer",
)
# How a task computes its gradients: quick under FSDP2 too.
GRADIENTS = (
    "unused_accumulated_bf16",
    "on_some_ranks_accumulated_bf16",
    "plain_output",
    "past_the_wrapper_accumulated",
    "replaced",
    "backward_inside",
    "caught",
    "hooked",
    "signs",
    "empty_layer",
    "experts",
    "reads",
    "reads_said",
    "dropped_accumulated_offloaded",
    "data_in_forward",
    "data_of_callback",
    "filled_by_callback",
    "read_by_callback",
    "seen_by_callback",
)
SETS = {"more": MORE, "gradients": GRADIENTS}
BFLOAT16 = 2e-2  # three digits
ROUNDING = 1e-5


def pretrained(folder: Path) -> str:
    """Return the folder of a small Llama of bfloat16."""
    path = folder / "pretrained"
    if not path.exists():
        torch.manual_seed(0)
        hugging_face("llama").to(torch.bfloat16).save_pretrained(path)
    return str(path)


def config_of(name: str, strategy: str, folder: Path) -> dict[str, Any]:
    if name in MODELS:
        settings = dict(MODELS[name])
        if "folder" in settings:
            settings["folder"] = pretrained(folder)
        given = {"task": LANGUAGE, "task_settings": settings, **OF_MODELS.get(name, {})}
    else:
        of_name = "".join(word.capitalize() for word in name.split("_"))
        given = {"task": of_name, **CASES[name]}
        given["task"] = given["task"] if ":" in given["task"] else f"brought_tasks:{given['task']}"
        given["callbacks"] = [f"brought_tasks:{hook}" for hook in given.get("callbacks", ())]
    if name == "thawed":
        checkpoints = folder / strategy / "frozen_body/checkpoints"
        given["resume"] = str(checkpoints / "step-00000004")
    share = 8 // (1 if strategy == "single" else 2) // given.pop("micro_batches", 1)
    return {**CONFIG, "micro_batch_size": share, **given}


def start(strategy: str, folder: Path, names: list[str], *, ends: bool = False) -> dict[str, Job]:
    configs = {name: config_of(name, strategy, folder) for name in names}
    files = FILES.get(strategy, {})
    return trained(strategy, folder / strategy, configs, files=files, ends=ends)


def results(strategy: str, folder: Path, which: str = "") -> Mapping[str, Job]:
    """The cases under one strategy, or those of ``SETS``."""
    return started(strategy, folder, which)


@cache
def started(strategy: str, folder: Path, which: str) -> dict[str, Job]:
    others = {
        *MORE,
        *GRADIENTS,
        "expert_of_rank",
        # One rank has its error while the other one is inside of an exchange.
        *(["on_some_ranks_unsaid"] if strategy == "ddp" else []),
    }
    quick = [name for name in (*CASES, *MODELS) if name not in others]
    return start(strategy, folder, list(SETS.get(which, quick)))


@pytest.mark.parametrize("which", ["", pytest.param("more", marks=pytest.mark.slow)])
@pytest.mark.parametrize("strategy", QUICK)
def test_what_users_bring_has_the_numbers_of_one_process(
    strategy: str, which: str, folder: Path
) -> None:
    look_at(strategy, which, folder)


@pytest.mark.parametrize("strategy", some_quick("fsdp", "zero3"))
def test_gradients_that_no_exchange_would_reach_are_right_or_refused(
    strategy: str, folder: Path
) -> None:
    look_at(strategy, "gradients", folder)


def look_at(strategy: str, which: str, folder: Path) -> None:
    """Compare cases with one process, or the error with ``REFUSED`` and ``UNSAID``."""
    alone, found = results("single", folder, which), results(strategy, folder, which)
    wrong = []
    unsaid = {
        name: line for names, strategies, line in UNSAID if strategy in strategies for name in names
    }
    for name in found.keys() - {"thawed"}:
        ours, theirs = alone[name].err, found[name].err
        rule = REFUSED.get(name) or unsaid.get(name)
        if rule is None:
            problem = ours or theirs or difference(name, alone[name], found[name])
        else:
            is_right = rule in theirs and (name not in REFUSED or rule in ours)
            problem = "" if is_right else repr(theirs)
        if problem:
            wrong.append(f"{name}: {problem}")
    assert wrong == []


def rows_of(job: Job) -> list[dict[str, float]]:
    """Return losses, norms and values that tasks report, the last evaluation, and kept norms."""
    reported = ("loss", "grad_norm", "error", "at", "high")
    rows = [{key: row[key] for key in reported if key in row} for row in job.rows if "loss" in row]
    norms = job.output_dir / "norms.jsonl"
    kept = json_lines(norms) if norms.exists() else []
    return [*rows, json_in(job.output_dir / "summary.json")["evaluation"], *kept]


def difference(name: str, alone: Job, found: Job) -> str:
    """The first thing that is further from one process than rounding explains, in words."""
    bound = BFLOAT16 if name.endswith("bf16") else ROUNDING
    ours, theirs = rows_of(alone), rows_of(found)
    if [row.keys() for row in ours] != [row.keys() for row in theirs]:
        return f"reports {theirs} instead of {ours}"
    for step, (own, other) in enumerate(zip(ours, theirs, strict=True), 1):
        for key, value in own.items():
            # None is the mean of no examples.
            if value is not None:
                value = pytest.approx(value, rel=bound, abs=1e-7, nan_ok=True)
            if other[key] != value:
                return f"step {step}: {key} {other[key]} instead of {value}"
    files = [path for job in (alone, found) for path in job.output_dir.glob("model/*.safetensors")]
    tensors, others = map(load_file, files)
    forms = [{k: (v.shape, v.dtype) for k, v in one.items()} for one in (tensors, others)]
    if forms[0] != forms[1]:
        return "other tensors in the model file"
    for key, tensor in tensors.items():
        if key not in ("replaced", "changed") and not others[key].allclose(
            tensor, rtol=bound, atol=bound
        ):
            return f"{key} {others[key]} instead of {tensor}"
    return ""


def test_a_parameter_that_one_rank_does_not_use_ends_ddp_with_its_name(folder: Path) -> None:
    [job] = start("ddp", folder, ["on_some_ranks_unsaid"], ends=True).values()
    told = "the loss of this step does not depend on two.weight, two.bias"
    assert any(told in line for line in job.err.strip().splitlines()[-3:]), job.err[-3000:]


def test_fsdp_ranks_that_call_different_blocks_end_with_the_key_that_helps(folder: Path) -> None:
    [job] = start("fsdp", folder, ["expert_of_rank"], ends=True).values()
    assert "ranks used different parameters in one of the last steps" in job.err, job.err[-3000:]
    assert "set find_unused_parameters: true" in job.err


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_buffers_and_names_are_exported_as_the_model_has_them(strategy: str, folder: Path) -> None:
    results(strategy, folder)
    load_export(Scalar().build_model(), folder / strategy / "scalar/model")
    buffers = load_file(folder / strategy / "buffers/model/model.safetensors")
    assert buffers["replaced"] == buffers["changed"] and buffers["large"][0] == 2**60 + 1
    assert buffers["short"].tolist() == [[-300, 2], [7, 3]]


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft reads the old name
@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True` and a tied layer:UserWarning"
)
@pytest.mark.parametrize("strategy", ["single", *QUICK])
@pytest.mark.parametrize("name", ["lora", "lora_saved", "lora_narrow"])
def test_an_adapted_model_is_exported_as_peft_loads_it(
    strategy: str, name: str, folder: Path
) -> None:
    """Its outputs are those of the model with the adapter's weights put in one by one."""
    from brought_language import Language
    from peft import PeftModel

    results(strategy, folder)
    exported = folder / strategy / name / "model"
    files = sorted(path.name for path in exported.iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    torch.manual_seed(0)
    loaded = PeftModel.from_pretrained(Language(kind=name).build_model().unload(), exported)
    torch.manual_seed(0)
    task = Language(kind=name)
    ours = task.build_model()
    part = task.saved_part(ours)
    assert part is not None
    held = load_file(exported / part.file)
    for own_name, tensor in canonical_state(ours).items():
        if own_name in part.names:
            tensor.detach().copy_(held[part.names[own_name]])
    ids = torch.randint(0, 40, (2, 8))
    assert torch.equal(loaded.eval()(input_ids=ids).logits, ours.eval()(input_ids=ids).logits)
    again = folder / strategy / name / "again"
    [newest, *_] = sorted((folder / strategy / name / "checkpoints").glob("step-*"), reverse=True)
    export_checkpoint(newest, again)
    for path in exported.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_a_pretrained_model_of_bfloat16_is_exported_as_the_float32_that_it_has(
    strategy: str, folder: Path
) -> None:
    results(strategy, folder)
    exported = folder / strategy / "pretrained/model"
    assert json_in(exported / "config.json")["dtype"] == "float32"
    assert {tensor.dtype for tensor in load_file(exported / "model.safetensors").values()} == {
        torch.float32
    }
    model = AutoModelForCausalLM.from_pretrained(exported)
    assert model.dtype == torch.float32 and not model.training


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_a_model_that_is_filled_after_it_was_divided_has_the_numbers_of_a_loaded_one(
    strategy: str, folder: Path
) -> None:
    found = results(strategy, folder)
    # To the bit: the same values, wherever they were read.
    assert rows_of(found["blank_pretrained"]) == rows_of(found["pretrained"])
    # Of a guess among 40 tokens.
    assert found["blank"].losses[0] == pytest.approx(math.log(40), rel=0.02)


@pytest.mark.parametrize("strategy", QUICK)
def test_layers_that_are_thawed_by_a_resume_learn_on(strategy: str, folder: Path) -> None:
    """ZeRO keeps one step counter for a group: layers that join it have that of the others, on
    every rank.
    """
    alone, found = results("single", folder), results(strategy, folder)
    notices = found["thawed"].plan["notices"]
    said = [notice for notice in notices if "counts for all" in notice]
    expected = "the optimizer keeps one step for 2 parameters here: 4 counts for all, the largest of theirs"
    divided = strategy.startswith("zero")
    assert said == ([expected] if divided else [])
    same = slice(1 if divided else 4)
    ours, theirs = (jobs["thawed"].losses[same] for jobs in (found, alone))
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
def test_layers_that_are_thawed_have_one_curve_under_all_stages_of_zero(folder: Path) -> None:
    first, *others = (results(name, folder)["thawed"].losses for name in ZERO)
    assert all(losses == pytest.approx(first, rel=1e-6) for losses in others)


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_early_stop_ends_at_the_same_step_on_one_process_and_on_two(
    strategy: str, folder: Path
) -> None:
    """Two evaluations without a better one are over at step 6; the next step is the last."""
    assert len(results(strategy, folder)["patience"].losses) == 7
