"""Run as connected processes under one layout: mixtures and blocks of files, whole and resumed.

    tests/workers/mixing.py '{"accel_config": ..., "folder": ..., "micro_batch_size": ..., "resume": ...}'

``resume`` is the folder of another layout's runs, of which each is gone on with from step 6.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from data_tasks import Mixture, OnBlocks
from of_all_ranks import leave

import trainer
from trainer import Task, TrainConfig, Trainer
from trainer.launching import launch

GLOBAL_BATCH, STEPS, SAVED_AT = 24, 12, 6


def task_of(name: str, given: Path) -> Task:
    if name == "own":
        return Mixture()
    if name == "blocks":
        return OnBlocks(files=str(given / "rows*.jsonl"))
    from trainer.language import DPO, CausalLM

    common: dict[str, Any] = {"model": str(given / "llama"), "cache_dir": str(given / "cache")}
    if name in ("streamed", "packed"):
        form = {"packing": "none", "long_documents": "cut"} if name == "streamed" else {}
        return CausalLM(
            data=str(given / "texts*.jsonl"),
            evaluation=str(given / "texts.jsonl"),
            stream=True,
            sequence_length=48,
            **form,
            **common,
        )
    if name == "preferences":
        pairs = [
            {"path": str(given / "pairs.jsonl"), "weight": 1, "max_samples": 20},
            {"path": str(given / "pairs.jsonl"), "weight": 3, "name": "all"},
        ]
        return DPO(data=pairs, sequence_length=96, adapter={"r": 4}, **common)
    sources = [
        {"path": str(given / "texts.jsonl"), "weight": 0.5, "passes": 1},
        {"path": str(given / "chats.jsonl"), "weight": 0.5},
    ]
    return CausalLM(data=sources, weight_by="tokens", sequence_length=64, **common)


def main() -> None:
    told = json.loads(sys.argv[1])
    folder, given = Path(told["folder"]), Path(told["given"])
    launched = None
    for name in told["names"]:
        before = told["resume"] and Path(told["resume"], name, "checkpoints", "step-00000006")
        task = task_of(name, given)
        config = TrainConfig(
            task=f"{type(task).__module__}:{type(task).__name__}",
            output_dir=str(folder / name),
            max_steps=STEPS,
            micro_batch_size=told["micro_batch_size"],
            global_batch_size=GLOBAL_BATCH,
            workers=1 if told["resume"] else 0,
            lr=0.01,
            eps=1e-4,
            log_every=1,
            save_every=SAVED_AT,
            resume=str(before or "none"),
        )
        launched = launch(config, accel_config=told["accel_config"])
        run = Trainer(task, config, launched)
        run.fit()
        found = {
            "world_size": run.run.accelerator.num_processes,
            "model_class": type(run.run.model).__name__,
        }
        run.close()
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
