"""nn.DataParallel beside DDP on the same GPUs: why there is no DataParallel here
(docs/strategies.md).

    python benchmarks/data_parallel.py
    python benchmarks/data_parallel.py --device cpu     # its own code: DataParallel is then the model itself

The same Llama of 124 million parameters, the same global batch, bf16 autocast, fused AdamW. Prints
milliseconds a step and the peak memory of each GPU. Not measured yet: it needs two GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from gpu_speed import LR, MODELS, TIMED, WARM, Llama, synchronize
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class WithLoss(nn.Module):
    """A model that returns its loss as a vector, which is what DataParallel can collect from its
    devices.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, labels=ids).loss.reshape(1)


def seconds_per_step(model: nn.Module, batch: Tensor) -> float:
    """Train some steps to warm up, and time the rest."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    begin = 0.0
    for step in range(WARM + TIMED):
        if step == WARM:
            synchronize()
            begin = time.perf_counter()
        with torch.autocast(batch.device.type, dtype=torch.bfloat16):
            loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    synchronize()
    return (time.perf_counter() - begin) / TIMED


def peaks(devices: range) -> list[int]:
    return (
        [torch.cuda.max_memory_allocated(number) for number in devices]
        if torch.cuda.is_available()
        else []
    )


def one_rank(name: str) -> None:
    """Be one process of DDP: its share of the batch on its own device."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    model, batch = made(name, dist.get_world_size())
    share = batch.chunk(dist.get_world_size())[dist.get_rank()].to(device)
    each = seconds_per_step(DistributedDataParallel(model.to(device)), share)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, peaks(range(local, local + 1)))
    if dist.get_rank() == 0:
        print(
            json.dumps({"seconds": each, "peaks": [peak for of_rank in every for peak in of_rank]}),
            flush=True,
        )
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def made(name: str, devices: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    task = Llama(name=name)
    size = MODELS[name]
    shape = (size.examples * devices, size.length)
    return WithLoss(task.build_model()), torch.randint(0, size.shape["vocab_size"], shape)


def line(name: str, seconds: float, memory: list[int]) -> str:
    shown = ", ".join(f"{peak / 2**30:.2f}" for peak in memory)
    return f"{name:16} {1e3 * seconds:8.1f} ms a step" + (
        f"  peak GiB of each GPU: {shown}" if shown else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rank", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        one_rank(args.rank)
    gpus = 2 if args.device == "cpu" else torch.cuda.device_count()
    if gpus < 2:
        print(f"nn.DataParallel needs two GPUs, and here are {gpus}: on one it is the model itself")
        return
    name = "tiny" if args.device == "cpu" else "124M"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc_per_node={gpus}",
        "--standalone",
        __file__,
    ]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if args.device == "cpu" else {}
    done = subprocess.run(
        [*command, "--rank", name],
        env={**os.environ, **hidden},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    ddp = json.loads(done.stdout.strip().splitlines()[-1])
    model, batch = made(name, gpus)
    first = torch.device("cuda", 0) if args.device == "cuda" else torch.device("cpu")
    threads = (
        nn.DataParallel(model.to(first))
        if args.device == "cuda"
        else nn.DataParallel(model, device_ids=[])
    )
    each = seconds_per_step(threads, batch.to(first))
    print(f"{name}, {gpus} devices, {batch.shape[0]} x {batch.shape[1]} tokens a step")
    print(line("nn.DataParallel", each, peaks(range(gpus))))
    print(line("DDP", ddp["seconds"], ddp["peaks"]))


if __name__ == "__main__":
    main()
