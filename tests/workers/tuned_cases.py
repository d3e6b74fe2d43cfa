"""Run as connected processes under one layout: fine-tunings by settings, whole or resumed.

    tests/workers/tuned_cases.py '{"accel_config": ..., "folder": ..., "given": ..., "resume": ...}'

``resume`` is the folder of another layout's runs, of which each is gone on with from step 2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from of_all_ranks import leave

import trainer
from trainer import Task, TrainConfig, Trainer, language
from trainer.launching import launch

STEPS, SAVED_AT = 4, 2
PAIRS = {"text_pair_column": "other", "sequence_length": 64, "evaluation": 0.25}
# The task of each case, its data, and its settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "orpo": ("DPO", "pairs.jsonl", {"objective": "orpo", "loss": "fused"}),
    "simpo": ("DPO", "pairs.jsonl", {"objective": "simpo", "beta": 2.0, "evaluation": 0.25}),
    "head": ("DPO", "pairs.jsonl", {"adapter": {"r": 4, "trained": ["lm_head"]}, "loss": "fused"}),
    "dora": ("CausalLM", "texts.jsonl", {"adapter": {"r": 4, "dora": True}}),
    "tokens": ("CausalLM", "tokens.jsonl", {"evaluation": 0.25, "sequence_length": 64}),
    "several": (
        "SequenceClassifier",
        "several.jsonl",
        {**PAIRS, "problem_type": "multi_label_classification"},
    ),
    "number": ("SequenceClassifier", "numbers.jsonl", {**PAIRS, "problem_type": "regression"}),
}


def task_of(case: str, given: Path) -> Task:
    name, data, settings = CASES[case]
    common = {"model": str(given / "llama"), "cache_dir": str(given / "cache")}
    kind: Any = getattr(language, name)
    task: Task = kind(**{"data": str(given / data), "sequence_length": 96, **common, **settings})
    return task


def main() -> None:
    told = json.loads(sys.argv[1])
    folder = Path(told["folder"])
    launched = None
    found: dict[str, Any] = {"evaluations": {}}
    for name in told["names"]:
        before = told["resume"] and Path(told["resume"], name, "checkpoints", "step-00000002")
        task = task_of(name, Path(told["given"]))
        config = TrainConfig(
            task=f"trainer.language:{type(task).__name__}",
            output_dir=str(folder / name),
            max_steps=STEPS,
            micro_batch_size=2,
            global_batch_size=8,
            lr=3e-3,
            eps=1e-4,
            max_grad_norm=1.0,
            log_every=1,
            save_every=SAVED_AT,
            resume=str(before or "none"),
        )
        launched = launch(config, accel_config=told["accel_config"])
        run = Trainer(task, config, launched)
        run.fit()
        found["world_size"] = run.run.accelerator.num_processes
        found["model_class"] = type(run.run.model).__name__
        run.close()
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
