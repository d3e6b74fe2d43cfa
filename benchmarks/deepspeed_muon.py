"""DeepSpeed's own Muon and `optimizer: muon` beside torch.optim.Muon, on 1 to 3 CPU processes.

    python benchmarks/deepspeed_muon.py

A small MLP, 10 steps of the same 12 rows. Muon steps all matrices, as DeepSpeed's rule has it, AdamW the
vectors. Prints the last loss, without clipping and with a limit of 0.1 on the norm.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer import Data, Task

ROOT = Path(__file__).resolve().parent.parent
STEPS, ROWS = 10, 12
LAYOUTS = (("ddp", 2), ("ddp", 3), ("fsdp", 3), ("zero1", 2), ("zero2", 3), ("zero3", 3))


class Mlp(Task):
    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        widths = (nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4))
        return nn.Sequential(*widths)

    def build_data(self) -> Data:
        torch.manual_seed(1)
        x, y = torch.randn(ROWS, 16), torch.randn(ROWS, 4)
        return Data(train=[{"x": x[row], "y": y[row]} for row in range(ROWS)])

    def training_step(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = ((model(batch["x"]) - batch["y"]) ** 2).mean()
        return loss


def rows() -> tuple[nn.Module, Tensor, Tensor]:
    task = Mlp()
    data = task.build_data().train
    return task.build_model(), *(torch.stack([row[key] for row in data]) for key in "xy")


def by_torch(clip: float) -> Iterator[float]:
    model, x, y = rows()
    parts = [[p for p in model.parameters() if (p.dim() > 1) is matrix] for matrix in (True, False)]
    muon = torch.optim.Muon(parts[0], lr=0.02, weight_decay=0.0, adjust_lr_fn="original")
    adamw = torch.optim.AdamW(parts[1], lr=0.005, weight_decay=0.0)
    for _ in range(STEPS):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        muon.step()
        adamw.step()
        model.zero_grad()
        yield loss.item()


def by_deepspeed(clip: float, stage: int) -> Iterator[float]:
    """Run a rank of DeepSpeed. Without its compiled operators, which wait for each other's locks."""
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, x, y = rows()
    rates = {"lr": 0.02, "muon_lr": 0.02, "adam_lr": 0.005, "momentum": 0.95, "weight_decay": 0.0}
    config = {
        "train_batch_size": ROWS,
        "gradient_clipping": clip,
        "zero_optimization": {
            "stage": stage,
            "reduce_scatter": stage != 3,
            "stage3_param_persistence_threshold": 0,
        },
        "optimizer": {
            "type": "Muon",
            "params": {**rates, "torch_adam": True, "ns_method": "standard"},
        },
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config
    )
    own = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    for _ in range(STEPS):
        loss = ((engine(x[own]) - y[own]) ** 2).mean()
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        yield total.item() / world


def started(*command: object) -> str:
    own = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
    words = [sys.executable, "-m", *map(str, command)]
    return subprocess.check_output(words, env=os.environ | own | path, text=True, timeout=300)


def of_deepspeed(clip: float, stage: int, world: int) -> float:
    launcher = ("torch.distributed.run", "--standalone", f"--nproc_per_node={world}")
    told = started(*launcher, __file__, "rank", clip, stage)
    return float(re.findall(r"LAST (\S+)", told)[-1])


def of_trainer(clip: float, layout: str, world: int) -> float:
    """Return the last loss of a run with ``optimizer: muon``."""
    own = {
        "adam_lr": 0.005,
        "adjust_lr_fn": "original",
        "dtype": "bf16",
        "betas": [0.9, 0.999],
        "names": {"*": "muon"},
    }
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "task": "deepspeed_muon:Mlp",
            "output_dir": f"{folder}/run",
            "max_steps": STEPS,
            "global_batch_size": ROWS,
            "micro_batch_size": None,
            "optimizer": "muon",
            "optimizer_settings": own,
            "lr": 0.02,
            "weight_decay": 0.0,
            "max_grad_norm": clip or None,
            "log_every": 1,
            "keep_last": 0,
        }
        file = Path(folder) / "mlp.yaml"
        file.write_text(json.dumps(config))
        launch = ROOT / "accel_configs" / f"{layout}.yaml"
        processes = ("--num_processes", world, "--main_process_port", 0)
        script = (ROOT / "examples" / "train.py", "--config", file)
        started("accelerate.commands.launch", "--config_file", launch, *processes, *script)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return float([row["loss"] for row in map(json.loads, lines) if "loss" in row][-1])


def main() -> None:
    for clip in (0.0, 0.1):
        told = [f"clip {clip:g}: torch {list(by_torch(clip))[-1]:.5f}"]
        told += [
            f"DeepSpeed stage {stage} x{world} {of_deepspeed(clip, stage, world):.5f}"
            for stage in (1, 2, 3)
            for world in (1, 3)
        ]
        told += [f"{name} x{world} {of_trainer(clip, name, world):.5f}" for name, world in LAYOUTS]
        print("\n  ".join(told), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        last = list(by_deepspeed(float(sys.argv[2]), int(sys.argv[3])))[-1]
        if os.environ["RANK"] == "0":
            print("LAST", last, flush=True)
        os._exit(0)
    main()
