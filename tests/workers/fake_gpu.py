"""A whole training on the fake GPU: steps, evaluations, checkpoints, a resume, and the end.

    python tests/workers/fake_gpu.py FOLDER

Leaves ``found.json`` in the folder: the functions that waited for the device, the states of the
GPU's random numbers that were set, and the autocast of the proof on packed rows. Every tensor is so
small that the fake GPU fills its copies on the host with ones.
"""
# ruff: noqa: E402 (the stand-in for the device is loaded before torch)

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from trainer.rehearsal.device_guard import load_guard

load_guard()

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer import Data, Task, TrainConfig, Trainer
from trainer.language.separation import probing
from trainer.rehearsal.cuda import install_cuda
from trainer.rehearsal.fake_device import FakeDevice
from trainer.rehearsal.fake_parameters import install_parameters
from trainer.rehearsal.ledger import Ledger


class Tokens(Task):
    """Two layers over random tokens, which weigh a batch, with an evaluation."""

    counts_tokens = True

    def build_data(self) -> Data:
        ids = torch.randint(0, 64, (16, 8), generator=torch.Generator().manual_seed(3))
        return Data(train=list(ids), evaluation=list(ids[:3]))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))

    def training_step(self, model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    def weight(self, batch: Tensor) -> float:
        return float(batch.numel())

    def evaluation_step(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.training_step(model, batch).expand(len(batch))}


def main() -> None:
    folder = Path(sys.argv[1])
    device = FakeDevice(Ledger("cuda"))
    install_cuda(device, "H100", 80 << 30)
    install_parameters()
    restored: list[Tensor] = []
    torch.cuda.set_rng_state = lambda state, *_: restored.append(state)
    with device:
        for stop_at in (2, 4):
            config = TrainConfig(
                task="fake_gpu:Tokens",
                output_dir=str(folder / "run"),
                max_steps=4,
                stop_at=stop_at,
                micro_batch_size=4,
                eval_every=2,
                save_every=2,
                log_every=1,
                profile_steps="4-4",
                mixed_precision="bf16",
                resume="auto",
            )
            Trainer(Tokens(), config).fit()
        model = SimpleNamespace(device=torch.device("cuda"))
        with probing(model):
            autocast = str(torch.get_autocast_dtype("cuda")), torch.is_autocast_enabled("cuda")
    own = torch.cuda.get_rng_state()  # of this process, always the same
    from_files = sum(state is not own for state in restored)
    waits = sorted({f"{line.rpartition(':')[0]}: {name}" for _, line, name, _ in device.reads})
    found = {"waits": waits, "restored": from_files, "autocast": autocast}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
