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

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from brought import CASES, SEVERAL
from brought_language import hugging_face
from brought_tasks import Scalar
from launchers import json_in, ranks, some_quick, wrapper_of
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from trainer import load_export
from trainer.commands.export import export_checkpoint
from trainer.strategies.tensors import canonical_state

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
        "DataError: rank 1: the result of Task.weight is part 0, part 1, rank 0: part 0",
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


def results(strategy: str, folder: Path, which: str = "") -> dict[str, dict[str, Any]]:
    """The cases under one strategy, or those of ``SETS``."""
    return started(strategy, folder, which)


@cache
def started(strategy: str, folder: Path, which: str) -> dict[str, dict[str, Any]]:
    others = {
        *MORE,
        *GRADIENTS,
        "expert_of_rank",
        # One rank has its error while the other one is inside of an exchange.
        *(["on_some_ranks_unsaid"] if strategy == "ddp" else []),
    }
    names = SETS.get(which) or [
        *(name for name in CASES if name not in others),
        *SEVERAL,
    ]
    start(strategy, folder, list(names))
    return {name: json_in(folder / strategy / f"{name}.json") for name in names}


def start(strategy: str, folder: Path, names: list[str], **more: Any) -> str:
    world = 1 if strategy == "single" else 2
    pretrained = folder / "pretrained"
    if not pretrained.exists():
        torch.manual_seed(0)
        hugging_face("llama").to(torch.bfloat16).save_pretrained(pretrained)
    told = {
        "accel_config": f"accel_configs/{strategy}.yaml",
        "folder": str(folder / strategy),
        "pretrained": str(pretrained),
        "world": world,
        "names": names,
        **more,
    }
    words = ["tests/workers/brought.py", json.dumps(told)]
    done = ranks(words, 0 if strategy == "single" else world, timeout=500)
    assert bool(more) == bool(done.returncode), f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stderr


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
    for name in found.keys() - SEVERAL:
        rule = REFUSED.get(name) or unsaid.get(name)
        if rule is not None:
            ours, theirs = alone[name].get("error", ""), found[name].get("error", "")
            if rule not in theirs or (name in REFUSED and rule not in ours):
                wrong.append(f"{name}: {theirs!r}")
            continue
        problem = (
            alone[name].get("error")
            or found[name].get("error")
            or difference(name, folder, strategy, which)
        )
        if problem:
            wrong.append(f"{name}: {problem}")
    assert wrong == []
    assert {found[name]["world_size"] for name in found if "world_size" in found[name]} == {2}
    classes = [one["model_class"] for one in found.values() if "model_class" in one]
    assert all(name.startswith(wrapper_of(strategy)) for name in classes)


def model_file(folder: Path) -> Path:
    [path] = folder.glob("*.safetensors")
    return path


def difference(name: str, folder: Path, strategy: str, which: str = "") -> str:
    """The first thing that is further from one process than rounding explains, in words."""
    alone, found = (results(one, folder, which)[name] for one in ("single", strategy))
    bound = BFLOAT16 if name.endswith("bf16") else ROUNDING
    if len(alone["rows"]) != len(found["rows"]):
        return f"{len(found['rows'])} steps instead of {len(alone['rows'])}"
    if alone["evaluation"].keys() != found["evaluation"].keys():
        return f"evaluates {sorted(found['evaluation'])} instead of {sorted(alone['evaluation'])}"
    rows = zip(
        [*alone["rows"], alone["evaluation"]], [*found["rows"], found["evaluation"]], strict=True
    )
    for step, (ours, theirs) in enumerate(rows, 1):
        for key, value in ours.items():
            if theirs[key] != pytest.approx(value, rel=bound, abs=1e-7, nan_ok=True):
                return f"step {step}: {key} {theirs[key]} instead of {value}"
    ours, theirs = (
        load_file(model_file(folder / one / name / "model")) for one in ("single", strategy)
    )
    forms = [{k: (v.shape, v.dtype) for k, v in one.items()} for one in (ours, theirs)]
    if forms[0] != forms[1]:
        return "other tensors in the model file"
    for key, tensor in ours.items():
        if key not in ("replaced", "changed") and not theirs[key].allclose(
            tensor, rtol=bound, atol=bound
        ):
            return f"{key} {theirs[key]} instead of {tensor}"
    return ""


def test_a_parameter_that_one_rank_does_not_use_ends_ddp_with_its_name(folder: Path) -> None:
    name = "on_some_ranks_unsaid"
    error = start("ddp", folder, [name], ends=[name])
    last = error.strip().splitlines()[-3:]
    assert any(
        "the loss of this step does not depend on two.weight, two.bias" in line for line in last
    ), error[-3000:]


def test_fsdp_ranks_that_call_different_blocks_end_with_the_key_that_helps(folder: Path) -> None:
    error = start("fsdp", folder, ["expert_of_rank"], ends=["expert_of_rank"])
    assert "ranks used different parameters in one of the last steps" in error, error[-3000:]
    assert "set find_unused_parameters: true" in error


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_buffers_and_names_are_exported_as_the_model_has_them(strategy: str, folder: Path) -> None:
    results(strategy, folder)
    load_export(Scalar().build_model(), folder / strategy / "scalar" / "model")
    buffers = load_file(folder / strategy / "buffers" / "model" / "model.safetensors")
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
    for own_name, tensor in canonical_state(ours):
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
    exported = folder / strategy / "pretrained" / "model"
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
    loaded = found["pretrained"]["rows"]
    assert (
        found["blank_pretrained"]["rows"] == loaded
    )  # to the bit: the same values, wherever they were read
    assert found["blank"]["rows"][0]["loss"] == pytest.approx(
        math.log(40), rel=0.02
    )  # of a guess among 40 tokens


@pytest.mark.parametrize("strategy", QUICK)
def test_layers_that_are_thawed_by_a_resume_learn_on(strategy: str, folder: Path) -> None:
    """ZeRO keeps one step counter for a group: layers that join it have that of the others, on
    every rank.
    """
    alone, found = results("single", folder)["thawed"], results(strategy, folder)["thawed"]
    assert found["losses"][0] == pytest.approx(alone["losses"][0], rel=1e-6)
    said = [notice for notice in found["notices"] if "counts for all" in notice]
    expected = "the optimizer keeps one step for 2 parameters here: 4 counts for all, the largest of theirs"
    divided = strategy.startswith("zero")
    assert said == ([expected] if divided else [])
    same = slice(1 if divided else 4)
    assert found["losses"][1][same] == pytest.approx(alone["losses"][1][same], rel=1e-6)


@pytest.mark.slow
def test_layers_that_are_thawed_have_one_curve_under_all_stages_of_zero(folder: Path) -> None:
    first, *others = (results(name, folder)["thawed"]["losses"][1] for name in ZERO)
    assert all(losses == pytest.approx(first, rel=1e-6) for losses in others)


@pytest.mark.parametrize("strategy", ["single", *QUICK])
def test_early_stop_ends_at_the_same_step_on_one_process_and_on_two(
    strategy: str, folder: Path
) -> None:
    """Two evaluations without a better one are over at step 6; the next step is the last."""
    assert len(results(strategy, folder)["patience"]["rows"]) == 7
