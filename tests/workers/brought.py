"""Run by torchrun under one layout: models and tasks as users bring them, one training after the other.

    torchrun ... tests/workers/brought.py '{"accel_config": ..., "folder": ..., "names": [...]}'

Each leaves ``<folder>/<name>.json`` with its losses, norms and evaluation, or the error that ended it, and
its exported model. All in one process: a launch costs more than a training of this size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brought_language import PRETRAINED, Generating, Language
from brought_tasks import (
    GLOBAL_BATCH,
    STEPS,
    BackwardInside,
    Bent,
    Buffers,
    Caught,
    ChangedInForward,
    ChangedInPlace,
    DataInForward,
    DataOfCallback,
    Dropped,
    Empty,
    EmptyLayer,
    ExpertOfRank,
    Experts,
    FilledByCallback,
    FrozenBody,
    FrozenInOptimizer,
    FrozenLater,
    FrozenNorm,
    HalfOptimized,
    Hooked,
    HookedLater,
    InAnyOrder,
    Independent,
    MaskedRows,
    Names,
    Narrow,
    OnSomeRanks,
    PartsOfRank,
    PastTheWrapper,
    Patience,
    Penalty,
    Plain,
    PlainOutput,
    ReadByCallback,
    Reads,
    Replaced,
    Reports,
    Scalar,
    SeenByCallback,
    Signs,
    Teacher,
    Unused,
)
from of_all_ranks import leave

import trainer
from trainer import Task, TrainConfig, Trainer
from trainer.launching import Launched, launch
from trainer.task import own_optimizer

CASES: dict[str, tuple[Callable[..., Task], dict[str, Any]]] = {
    "plain": (Plain, {}),
    "past_the_wrapper": (PastTheWrapper, {}),
    "unused": (Unused, {"find_unused_parameters": True, "weight_decay": 0.1}),
    "unused_unsaid": (Unused, {"weight_decay": 0.1}),
    "dropped": (Dropped, {}),
    "dropped_accumulated": (Dropped, {"micro_batches": 2}),
    "dropped_accumulated_offloaded": (Dropped, {"micro_batches": 2}),
    "teacher": (Teacher, {"eval_every": 2}),
    "changed_in_place": (ChangedInPlace, {"eval_every": 1}),
    "changed_in_forward": (ChangedInForward, {}),
    "data_in_forward": (DataInForward, {}),
    "data_of_callback": (DataOfCallback, {}),
    "filled_by_callback": (FilledByCallback, {}),
    "read_by_callback": (ReadByCallback, {}),
    "seen_by_callback": (SeenByCallback, {}),
    "penalty": (Penalty, {"find_unused_parameters": True, "micro_batch_size": 2}),
    "caught": (Caught, {"ema_decay": 0.5}),
    "caught_whole": (Caught, {"ema_decay": 0.5}),
    "hooked": (Hooked, {}),
    "signs": (Signs, {}),
    "reads": (Reads, {}),
    "reads_said": (Reads, {"find_unused_parameters": True}),
    "masked_rows": (MaskedRows, {"micro_batch_size": 2, "weight_decay": 0.0}),
    "parts_of_rank": (PartsOfRank, {}),
    "on_some_ranks": (OnSomeRanks, {"find_unused_parameters": True}),
    # With one, DeepSpeed's stage 3 ends it in its own words: it compares the modules that each
    # rank's first forward pass went through.
    "on_some_ranks_unsaid": (OnSomeRanks, {"sanity_evaluation": False}),
    "in_any_order": (InAnyOrder, {"micro_batch_size": 2}),
    "scalar": (Scalar, {}),
    "empty": (Empty, {}),
    "narrow": (Narrow, {}),
    "narrow_bf16": (Narrow, {"mixed_precision": "bf16"}),
    "bent": (Bent, {}),
    "half_optimized": (HalfOptimized, {"max_grad_norm": 0.5}),
    "frozen_in_optimizer": (FrozenInOptimizer, {}),
    "frozen_later": (FrozenLater, {}),
    "hooked_later": (HookedLater, {}),
    "names": (Names, {"evaluation_batch_size": 2}),
    "reports": (Reports, {}),
    "frozen_norm": (FrozenNorm, {}),
    "buffers": (Buffers, {"micro_batch_size": 2, "max_steps": 8}),
    "independent": (Independent, {}),
    "backward_inside": (BackwardInside, {"sanity_evaluation": False}),
    "empty_layer": (EmptyLayer, {}),
    "experts": (Experts, {"find_unused_parameters": True}),
    "expert_of_rank": (ExpertOfRank, {"sanity_evaluation": False}),
    "plain_output": (PlainOutput, {}),
    "plain_output_whole": (PlainOutput, {}),
    "past_the_wrapper_accumulated": (PastTheWrapper, {"micro_batch_size": 2}),
    "replaced": (Replaced, {}),
    "replaced_whole": (Replaced, {}),
    "unused_accumulated_bf16": (
        Unused,
        {"find_unused_parameters": True, "micro_batch_size": 2, "mixed_precision": "bf16"},
    ),
    "on_some_ranks_accumulated_bf16": (
        OnSomeRanks,
        {"find_unused_parameters": True, "micro_batch_size": 2, "mixed_precision": "bf16"},
    ),
    "patience": (
        Patience,
        {"eval_every": 2, "best_metric": "eval/loss", "early_stop_patience": 2, "max_steps": 20},
    ),
    "llama": (lambda: Language(kind="llama"), {}),
    "generating": (Generating, {"evaluation_batch_size": 2}),
    "bert": (lambda: Language(kind="bert"), {}),
    "pretrained": (lambda: Language(folder=PRETRAINED[0]), {}),
    "blank": (lambda: Language(kind="llama_tied", blank=True), {"ema_decay": 0.9}),
    "blank_pretrained": (lambda: Language(folder=PRETRAINED[0], blank=True), {}),
    "blank_head": (lambda: Language(kind="head", folder=PRETRAINED[0], blank=True), {}),
    "lora": (lambda: Language(kind="lora"), {}),
    "lora_narrow": (lambda: Language(kind="lora_narrow"), {}),
    "lora_saved": (lambda: Language(kind="lora_saved"), {}),
    "bert_masked": (lambda: Language(kind="bert_masked"), {"find_unused_parameters": True}),
}


# A launch file in the place of another, for what it takes that is no key of the training config.
FILES = {
    (name, "accel_configs/fsdp.yaml"): "tests/workers/fsdp_whole.yaml"
    for name in (
        "penalty",
        "caught_whole",
        "plain_output_whole",
        "replaced_whole",
    )
}
for name in ("filled_by_callback", "read_by_callback", "seen_by_callback"):
    FILES[name, "accel_configs/zero3.yaml"] = "tests/workers/zero3_gathers.json"
for stage, folder in ((1, "tests/workers"), (2, "tests/workers"), (3, "accel_configs")):
    FILES["dropped_accumulated_offloaded", f"accel_configs/zero{stage}.yaml"] = (
        f"{folder}/zero{stage}_offload.yaml"
    )


def configured(world: int, **settings: Any) -> TrainConfig:
    share = GLOBAL_BATCH // world // settings.pop("micro_batches", 1)
    micro = settings.pop("micro_batch_size", share)
    return TrainConfig(
        **{
            "task": "brought_tasks:Plain",
            "micro_batch_size": micro,
            "global_batch_size": GLOBAL_BATCH,
            "max_steps": STEPS,
            "lr": 0.01,
            "eps": 1e-4,  # far above rounding, of which Adam would take the sign
            "log_every": 1,
            # files in bfloat16 would hide what differs, or round it apart
            "export_dtype": "float32",
            **settings,
        }
    )


def train(launched: Launched, folder: Path, name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    build, settings = CASES[name]
    try:
        task = build()
        if own_optimizer(task) is not None:
            settings = {"eps": 1e-8, **settings}  # the default, which is not meant for it
        config = configured(launched.plan.world_size, output_dir=str(folder / name), **settings)
        callbacks = task.callbacks() if hasattr(task, "callbacks") else ()
        file = FILES.get((name, told["accel_config"]), told["accel_config"])
        run = Trainer(task, config, launch(config, accel_config=file), callbacks=callbacks)
        rows = []
        for info in run.steps():
            assert info.metrics is not None
            more = {
                key: info.metrics[key] for key in ("error", "at", "high") if key in info.metrics
            }
            rows.append(
                {"loss": info.metrics["loss"], "grad_norm": info.metrics["grad_norm"], **more}
            )
        run.run.export(folder / name / "model")
        found = {
            "rows": rows,
            "evaluation": run.run.last_evaluation,
            "model_class": type(run.run.model).__name__,
            "world_size": run.run.accelerator.num_processes,
        }
        run.run.close()
        return found
    except (trainer.TrainerError, RuntimeError) as error:
        if name in told.get("ends", ()):
            raise  # the other ranks wait inside of a collective
        return {"error": f"{type(error).__name__}: {error}"}


def train_thawed(folder: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """First a head alone, then from its checkpoint the whole model: the losses of both, and what is
    said.
    """
    path = str(folder / "body" / "checkpoints" / "step-00000004")
    phases: list[tuple[Task, dict[str, Any]]] = [
        (FrozenBody(), {"max_steps": 4, "save_every": 4}),
        (Plain(), {"max_steps": 8, "resume": path, "allow_config_change": True}),
    ]
    losses, notices = [], []
    for (task, settings), name in zip(phases, ("body", "all"), strict=True):
        config = configured(told["world"], output_dir=str(folder / name), **settings)
        run = Trainer(task, config, launch(config, accel_config=told["accel_config"]))
        losses.append([info.metrics["loss"] for info in run.steps() if info.metrics])
        notices = run.run.facts["notices"]
        run.run.close()
    return {"losses": losses, "notices": notices}


SEVERAL = {"thawed": train_thawed}


def main() -> None:
    told = json.loads(sys.argv[1])
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    world = told["world"]
    PRETRAINED.append(told["pretrained"])
    launched = launch(configured(world), accel_config=told["accel_config"])
    for name in told["names"]:
        found = (
            SEVERAL[name](folder, told) if name in SEVERAL else train(launched, folder, name, told)
        )
        leave(folder / f"{name}.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
