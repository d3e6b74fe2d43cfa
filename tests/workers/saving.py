"""Run under one layout: a small language model with one key after the other that saves memory or
time.

    ranks ... tests/workers/saving.py accel_configs/fsdp.yaml FOLDER '{"plain": [{}, {}], ...}'

Of each case the settings of the task and the launch file's key for the compiler are given. It
leaves ``FOLDER/<name>.json`` with its losses and the parameters' names.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import yaml
from of_all_ranks import leave

import trainer
from trainer import TrainConfig, Trainer
from trainer.language import CausalLM
from trainer.launching import launch

STEPS = 20


def main() -> None:
    file, folder, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    launch_file = yaml.safe_load(file.read_text())
    world = launch_file.get("num_processes", 1)
    for name, (settings, more) in cases.items():
        own = dict(launch_file)
        if more.pop("compile", False):
            # aot_eager traces as inductor does, and needs no compiler's minutes.
            own["dynamo_config"] = {"dynamo_backend": "aot_eager"}
        mine, written = folder / f"{name}.yaml", folder / f"{name}.{os.getpid()}"
        written.write_text(yaml.safe_dump(own))
        written.replace(mine)  # whole at once: the other ranks read it
        config = TrainConfig(
            task="trainer.language:CausalLM",
            output_dir=str(folder / name),
            keep_last=0,
            micro_batch_size=4 // world,
            global_batch_size=4,
            max_steps=STEPS,
            log_every=1,
            lr=3e-3,
            eps=1e-4,
            **more,
        )
        run = Trainer(CausalLM(**settings), config, launch(config, accel_config=str(mine)))
        found = {
            "losses": [info.metrics["loss"] for info in run.steps() if info.metrics],
            "compiled": sum(
                module._compiled_call_impl is not None for module in run.run.model.modules()
            ),
            "names": [name for name, _ in run.run.strategy.parameters()],
        }
        run.run.close()
        leave(folder / f"{name}.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
