"""Questions that only a GPU answers, each in a process of its own with a time limit of its own.

    python -m benchmarks.gpu_probes --out $OUT/probes.jsonl
    python -m benchmarks.gpu_probes --out /tmp/probes.jsonl --rehearse     # tiny sizes, on a CPU

    attention   4 x 4,096 tokens of packed documents, forward and backward: torch's attention
                without a mask (which lets documents see each other: the time to reach), with the
                dense mask that transformers makes of position ids, and varlen_attn, which is given
                the borders
    loss        8,192 tokens over 152,000 words, forward and backward through the last layer: all
                logits at once, the same compiled, and in samecurve's chunks
    saving      a training of 1 billion parameters saves twice: how long each save holds it up, and
                how long it writes. The first page-locks the host memory that both copy to
    loading     2 GB of bf16 weights to float32 on the device: by transformers, and by samecurve
                into a model that was built on the meta device, in one process and under FSDP2

Each answer is appended to the file as soon as it is there. Run on an H200 on 2026-11-28 (docs/gpu.md).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gpu_jobs
from benchmarks.gpu_jobs import last_lines

GIB = 2**30
PROBES = (
    *("attention causal", "attention mask", "attention varlen"),
    *("loss plain", "loss compiled", "loss chunks"),
    *("saving", "loading transformers", "loading single", "loading fsdp"),
)
CONNECTED = ("loading fsdp",)


# -- attention ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Rows of documents, as a packed language model sees them."""

    rows: int
    length: int
    heads: int
    width: int
    shortest: int


FULL = Packed(rows=4, length=4096, heads=32, width=64, shortest=64)
TINY = Packed(rows=2, length=64, heads=2, width=16, shortest=8)


def borders(sizes: Packed) -> list[int]:
    """Return where documents begin in all rows laid end to end, and the end; none crosses rows."""
    import torch

    generator = torch.Generator().manual_seed(0)
    found = []
    for row in range(sizes.rows):
        inside = torch.randperm(sizes.length // sizes.shortest - 1, generator=generator)[:7]
        starts = [0, *sorted((1 + inside) * sizes.shortest)]
        found += [row * sizes.length + int(start) for start in starts]
    return [*found, sizes.rows * sizes.length]


def attention(way: str, rehearse: bool) -> dict[str, Any]:
    """Return milliseconds of a forward and backward pass, and the memory beside its inputs."""
    import torch
    import torch.nn.functional as F

    from benchmarks.gpu_speed import device

    sizes = TINY if rehearse else FULL
    shape = (sizes.rows, sizes.length, sizes.heads, sizes.width)  # as projections leave them
    torch.manual_seed(0)
    inputs = [
        torch.randn(shape, device=device(), dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    starts = borders(sizes)

    if way == "varlen":
        from torch.nn.attention.varlen import varlen_attn

        if rehearse:
            return {"not_run": "varlen_attn has no kernel for CPUs"}
        limits = torch.tensor(starts, device=device(), dtype=torch.int32)

        def attend() -> Any:
            flat = [values.flatten(0, 1) for values in inputs]
            most = sizes.length  # of a document: what a collate can say without looking
            # A window without anything ahead is causal attention.
            return varlen_attn(*flat, limits, limits, most, most, window_size=(-1, 0))

    else:
        mask = dense_mask(sizes, starts).to(device()) if way == "mask" else None

        def attend() -> Any:
            heads = [values.transpose(1, 2) for values in inputs]
            return F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=mask is None)

    return measured(lambda: attend().sum().backward(), rehearse)


def measured(work: Callable[[], object], rehearse: bool) -> dict[str, Any]:
    """Return milliseconds of some work, and the memory beside what was there before."""
    import torch

    from benchmarks.gpu_speed import synchronize

    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    work()  # compiles
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    times = 2 if rehearse else 20
    for number in range(2 * times):  # the first half warms up
        if number == times:
            synchronize()
            began = time.perf_counter()
        work()
    synchronize()
    found: dict[str, Any] = {"ms": 1e3 * (time.perf_counter() - began) / times}
    if torch.cuda.is_available():
        found["gib"] = (torch.cuda.max_memory_allocated() - before) / GIB
    return found


def dense_mask(sizes: Packed, starts: list[int]) -> Any:
    """Return which keys each query sees: [rows, 1, length, length], as transformers makes it."""
    import torch

    document = torch.zeros(sizes.rows * sizes.length, dtype=torch.long)
    document[starts[:-1]] = 1
    of_row = document.cumsum(0).view(sizes.rows, 1, sizes.length)
    same = of_row.unsqueeze(-1) == of_row.unsqueeze(-2)
    return same & torch.ones(sizes.length, sizes.length, dtype=torch.bool).tril()


# -- the loss -------------------------------------------------------------------------------------


def loss(way: str, rehearse: bool) -> dict[str, Any]:
    """Return milliseconds and memory of a loss with its gradients, behind the last hidden state."""
    import torch
    from torch import nn

    from benchmarks.gpu_speed import device
    from trainer.language.loss import FusedHead, loss_of_logits

    tokens, words, width = (64, 256, 32) if rehearse else (8192, 152_064, 4096)
    torch.manual_seed(0)
    head = nn.Linear(width, words, bias=False, device=device())
    hidden = torch.randn(1, tokens, width, device=device(), requires_grad=True)
    targets = torch.randint(words, (1, tokens), device=device())
    of_logits = torch.compile(loss_of_logits) if way == "compiled" else loss_of_logits
    if way == "chunks":
        head.__class__ = FusedHead
        head.always, head.targets = True, targets

    def compute() -> None:
        head.weight.grad = hidden.grad = None
        with torch.autocast(device().type, dtype=torch.bfloat16):
            output = head(hidden)
            value = output if way == "chunks" else of_logits(output, targets)
        value.backward()
        values.append(value.detach())

    values: list[Any] = []
    found = measured(compute, rehearse)
    return {**found, "loss": float(values[-1])}


# -- saving ---------------------------------------------------------------------------------------


def saving(rehearse: bool) -> dict[str, Any]:
    """Return how long a first and a second save held up training, and how long they wrote."""
    import trainer
    from benchmarks.gpu_speed import MODELS, Llama
    from trainer import TrainConfig, Trainer

    name = "tiny" if rehearse else "1B"
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            task="benchmarks:none", output_dir=f"{folder}/run", max_steps=100, keep_last=1,
            micro_batch_size=MODELS[name].examples, mixed_precision="bf16",
        )  # fmt: skip
        training = Trainer(Llama(name=name), config, trainer.launch(config))
        run = training.run
        found: dict[str, Any] = {"parameters": run.facts["parameters"]}
        for info in training.steps():
            if info.step in (2, 4):
                which = "first" if info.step == 2 else "second"
                before = run.meter.spent["saving"]
                run.save()
                found[f"{which}_stall_seconds"] = round(run.meter.spent["saving"] - before, 3)
                began = time.perf_counter()
                run.saver.finish()
                found[f"{which}_write_seconds"] = round(time.perf_counter() - began, 3)
            if info.step == 5:
                break
        checkpoints = Path(folder, "run", "checkpoints")
        files = [file for file in checkpoints.rglob("*") if file.is_file()]
        found["gib"] = round(sum(file.stat().st_size for file in files) / GIB, 3)
        run.close()
    return found


# -- loading --------------------------------------------------------------------------------------


def loading(way: str, rehearse: bool) -> dict[str, Any]:
    """Return seconds from a folder of weights to float32 parameters on the device."""
    import torch
    from torch import nn

    import trainer
    from benchmarks.gpu_speed import Llama, device, synchronize
    from benchmarks.gpu_table import launch_file
    from trainer import TrainConfig, build
    from trainer.task import Pretrained

    name = "tiny" if rehearse else "1B"
    task = Llama(name=name)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights"
        task.build_model().to(torch.bfloat16).save_pretrained(weights)  # type: ignore[operator]
        size = sum(file.stat().st_size for file in weights.glob("*.safetensors"))
        torch.zeros(1, device=device())  # starts CUDA

        if way == "transformers":
            from transformers import LlamaForCausalLM

            began = time.perf_counter()
            model = LlamaForCausalLM.from_pretrained(weights, dtype=torch.float32)
            model.to(device())
        else:

            class Stored(Llama):
                def build_model(self) -> nn.Module:
                    with torch.device("meta"):
                        return super().build_model()

                def pretrained(self, model: nn.Module) -> Pretrained:
                    return Pretrained(folder=weights)

            config = TrainConfig(
                task="benchmarks:none", output_dir=f"{folder}/run", max_steps=1,
                micro_batch_size=1, mixed_precision="bf16", keep_last=0,
            )  # fmt: skip
            launched = trainer.launch(config, **launch_file(way, 1))
            began = time.perf_counter()
            run = build(Stored(name=name), config, launched)
        synchronize()
        seconds = time.perf_counter() - began
        if way != "transformers":
            run.close()
    return {"seconds": round(seconds, 3), "gib": size / GIB, "gib_per_second": size / GIB / seconds}


# -- all of them ----------------------------------------------------------------------------------


def be_probe(args: argparse.Namespace) -> None:
    """Answer the question of this process."""
    import torch

    kind, _, way = args.probe.partition(" ")
    answers: dict[str, Callable[[], dict[str, Any]]] = {
        "attention": lambda: attention(way, args.rehearse),
        "loss": lambda: loss(way, args.rehearse),
        "saving": lambda: saving(args.rehearse),
        "loading": lambda: loading(way, args.rehearse),
    }
    found = answers[kind]()
    found["torch"] = torch.__version__
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    Path(args.out).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="append each answer, as a line of JSON")
    parser.add_argument("--budget", type=float, default=240, help="seconds for all of them")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--only", nargs="+", default=PROBES, choices=PROBES, metavar="PROBE")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe is not None:
        import trainer

        trainer.run_and_exit(lambda: be_probe(args))

    gpu_jobs.prepare(rehearse=args.rehearse)
    budget = gpu_jobs.Budget(args.budget)
    for probe, limit in budget.jobs(args.only, args.limit):
        began = budget.spent
        words = ["benchmarks.gpu_probes", "--probe", probe]
        if args.rehearse:
            words.append("--rehearse")
        found = gpu_jobs.run(words, limit=limit, ranks=1 if probe in CONNECTED else 0)
        row = {"probe": probe, **found, "seconds_in_all": round(budget.spent - began, 1)}
        gpu_jobs.append(Path(args.out), row)
        answer = last_lines(found["error"]) if "error" in found else json.dumps(found)
        print(f"[{budget.spent:4.0f} s] {probe}: {answer}", flush=True)


if __name__ == "__main__":
    main()
