"""Tokens a second and memory of a Llama on GPUs, beside a loop written by hand and
transformers.Trainer.

    python benchmarks/gpu_speed.py 124M                                    # one GPU
    torchrun --nproc_per_node 2 benchmarks/gpu_speed.py 1B --json out.json
    python benchmarks/gpu_speed.py tiny                                    # its own code, on a CPU

All three train the same way, so that only the loop around it differs: bf16 by autocast over float32
weights, fused AdamW without weight decay, clipping, the same loss from the model's logits, and
batches of torch's DataLoader from page-locked memory. All three compile layer by layer, as
``compile: true`` does. A Llama that is compiled as a whole has a dense mask in its attention, which
takes another kernel: ``tests/unit/benchmarks/test_gpu_speed.py`` looks at the graphs.

Each loop trains some steps, which compile, then two seconds for the clocks of the GPU, and then
times each step of three seconds and more by events of the GPU. Beside the speed: the allocator's
peak in these steps, and the rehearsed peak.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.config.documents import read_document
from trainer.data.order import epoch_order
from trainer.rehearsal.job import Job

ROOT = Path(__file__).resolve().parents[1]
LR, CLIP, SEED = 1e-4, 1.0, 0
WARM, TIMED = 4, 16  # steps that compile, and steps that are timed at least
# On a GPU: seconds until the clocks are steady, and seconds that are timed at least. Rows of 0.6 s
# differ from themselves.
WARM_SECONDS, TIMED_SECONDS = 2.0, 3.0
PACE = 2  # steps that tell how many steps so many seconds are
MOST = 100_000  # steps that a loop has at least; the clock ends it
KEPT = 25  # losses of the first steps: later ones differ by what rounding has become


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and its batch.

    Args:
        examples, length: rows of a micro-batch, and tokens of a row.
        gib: of GPU memory that it needs, with room for the most wasteful loop.
        shape: of the model, as LlamaConfig names it.
    """

    examples: int
    length: int
    gib: int
    shape: Mapping[str, int]

    @property
    def tokens(self) -> int:
        """Return the tokens of a micro-batch."""
        return self.examples * self.length


MODELS = {
    "tiny": Size(examples=2, length=32, gib=0, shape={
        "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4}),
    "124M": Size(examples=16, length=1024, gib=20, shape={
        "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_key_value_heads": 12}),
    "1B": Size(examples=4, length=2048, gib=60, shape={
        "vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8}),
    # Frozen in float32, with adapters (gpu_language.py): 32 GB. With AdamW the whole needs 128 GB.
    "8B": Size(examples=2, length=2048, gib=60, shape={
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Llama(Task):
    """A Llama with tied embeddings, on random tokens.

    Args:
        name: a key of ``MODELS``.
        attention: transformers' name.
    """

    name: str = "tiny"
    attention: str = "sdpa"

    def config(self) -> Any:
        from transformers import LlamaConfig

        size = MODELS[self.name]
        return LlamaConfig(
            **size.shape,
            max_position_embeddings=size.length,
            tie_word_embeddings=True,
            use_cache=False,
            attn_implementation=self.attention,
        )

    def build_data(self) -> Data:
        size = MODELS[self.name]
        generator = torch.Generator().manual_seed(0)
        vocabulary = size.shape["vocab_size"]
        ids = torch.randint(0, vocabulary, (16 * size.examples, size.length), generator=generator)
        # Shifted here, so that no loop has to copy its logits for that.
        labels = ids.roll(-1, dims=1)
        labels[:, -1] = -100
        rows = zip(ids, labels, strict=True)
        return Data(train=[{"input_ids": row, "labels": label} for row, label in rows])

    def build_model(self) -> nn.Module:
        """Build the model with shifted copies of a million random numbers.

        To draw a billion takes a CPU ten seconds, which each row of the GPU's table would wait for.
        """
        from transformers import LlamaForCausalLM
        from transformers.initialization import no_init_weights

        with no_init_weights():
            model = LlamaForCausalLM(self.config())
        model.tie_weights()

        numbers = 0.02 * torch.randn(1_000_003)  # a prime: no two rows of a matrix are alike
        for parameter in model.parameters():
            if parameter.dim() > 1:
                for part in parameter.data.view(-1).split(len(numbers)):
                    part.copy_(numbers[: len(part)])
        return model  # type: ignore[no-any-return]

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        logits = model(input_ids=batch["input_ids"]).logits
        return mean_loss(logits, batch["labels"])

    def operations(self) -> float:
        """Return the floating-point operations of a micro-batch."""
        size = MODELS[self.name]
        return operations(size, seen=size.length / 2)


def operations(size: Size, *, seen: float, passes: float = 3.0) -> float:
    """Return the floating-point operations of a micro-batch: matrices, and causal attention.

    Args:
        seen: positions that a token looks at, in the mean.
        passes: over the matrices: one forward, one for the gradients of the activations, and one
            for those of the weights, which frozen weights do not have.
    """
    width, layers = size.shape["hidden_size"], size.shape["num_hidden_layers"]
    groups = size.shape["num_key_value_heads"] / size.shape["num_attention_heads"]

    attention = 2 * width**2 * (1 + groups)
    feed_forward = 3 * width * size.shape["intermediate_size"]
    head = size.shape["vocab_size"] * width
    matrices = layers * (attention + feed_forward) + head
    # Two for each weight and pass; two products with each position that a token looks at.
    return size.tokens * (2.0 * passes * matrices + 12.0 * layers * width * seen)


def mean_loss(logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
    """Return the loss in float32, as transformers' models compute it. The same for every loop."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def compile_layers(model: nn.Module) -> None:
    """Compile layer by layer, with what ``compile: true`` compiles with."""
    from accelerate.utils.other import compile_regions_fsdp2

    compile_regions_fsdp2(model)


class Clock:
    """What the timed steps of a loop cost, and the losses of its first steps.

    Args:
        warm: steps that compile.
        timed: steps that are timed at least.
        warm_seconds: seconds of steps behind those that compile.
        seconds: seconds that are timed at least.
        trace: file for the trace of one more step, on the main process; the table of its operations
            is written beside it.

    Attributes:
        times: seconds of each timed step.
        host: seconds a step until all of them were launched. On a GPU it is less than their mean,
            unless Python is what takes the time, or something waits for the device in a step: as
            samecurve does for the norm of the step before.
        allocated, reserved: bytes at the allocator's peak in the timed steps.
        losses: of the first steps, on the device.
        trace_error: why there is no trace.
    """

    def __init__(
        self,
        warm: int = WARM,
        timed: int = TIMED,
        *,
        warm_seconds: float = 0.0,
        seconds: float = 0.0,
        trace: Path | None = None,
    ) -> None:
        self.warm, self.timed = warm, timed
        self.warm_seconds, self.seconds = warm_seconds, seconds
        self.steps, self.first, self.last, self.begin, self.host = 0, MOST, MOST, 0.0, 0.0
        self.allocated, self.reserved = 0, 0
        self.losses: list[Tensor] = []
        self.times: list[float] = []
        self.trace, self.trace_error = trace, ""
        self._stamps: list[Any] = []
        self._profiler: Any = None

    @property
    def median(self) -> float:
        """Return the median of the seconds of a step."""
        return statistics.median(self.times)

    @property
    def slow(self) -> float:
        """Return the seconds that a tenth of the steps take at least."""
        return sorted(self.times)[math.ceil(0.9 * len(self.times)) - 1]

    def tick(self, loss: Tensor | None = None) -> bool:
        """Count a step, and return whether it was the last. Collective: call on every rank."""
        self.steps += 1
        if loss is not None and len(self.losses) < KEPT:
            self.losses.append(loss.detach())

        if self.steps == self.warm:
            synchronize()
            self.begin = time.perf_counter()
        if self.steps == self.warm + PACE:
            self._plan()
        if self.steps == self.first:
            synchronize()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            self.begin = time.perf_counter()
        if self.first <= self.steps <= self.last:
            self._stamps.append(stamp())
        if self.steps == self.last:
            self._read()
        if self.trace is not None and self.steps >= self.last:
            self._trace(self.trace)
        return self.steps >= self.last + (2 if self.trace else 0)

    def _plan(self) -> None:
        """Set the first and the last timed step, the same on every rank."""
        synchronize()
        slowest = torch.tensor((time.perf_counter() - self.begin) / PACE, device=device())
        if world_size() > 1:
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        each = float(slowest)
        self.first = self.steps + math.ceil(self.warm_seconds / each)
        self.last = self.first + max(self.timed, math.ceil(self.seconds / each))

    def _read(self) -> None:
        """Read what the timed steps cost."""
        self.host = (time.perf_counter() - self.begin) / (self.last - self.first)
        synchronize()
        self.times = [seconds_between(*both) for both in pairwise(self._stamps)]
        if torch.cuda.is_available():
            self.allocated = torch.cuda.max_memory_allocated()
            self.reserved = torch.cuda.max_memory_reserved()

    def _trace(self, path: Path) -> None:
        """Trace the second of two more steps: the profiler's own start is in the first."""
        if int(os.environ.get("RANK", "0")) or self.trace_error:
            return
        try:
            if self._profiler is None:
                plan = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
                self._profiler = torch.profiler.profile(schedule=plan)
                self._profiler.start()
                return
            synchronize()
            self._profiler.step()
            if self.steps == self.last + 2:
                self._profiler.stop()
                path.parent.mkdir(parents=True, exist_ok=True)
                self._profiler.export_chrome_trace(str(path))
                device_time = torch.cuda.is_available()
                order = "self_device_time_total" if device_time else "self_cpu_time_total"
                table = self._profiler.key_averages().table(order, row_limit=40)
                path.with_suffix("").with_suffix(".txt").write_text(table)
        except Exception as error:  # a row is worth more than its trace
            self.trace_error = f"{type(error).__name__}: {error}"


def stamp() -> Any:
    """Return this moment: of the device, if there is a GPU."""
    if not torch.cuda.is_available():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(one: Any, other: Any) -> float:
    """Return the seconds between two moments that ``stamp`` returned."""
    return other - one if isinstance(one, float) else one.elapsed_time(other) / 1e3


def patient(**more: Any) -> Clock:
    """Return a clock with the seconds for the device: none on a CPU, whose clocks are steady."""
    if not torch.cuda.is_available() or "FAKE_GPUS" in os.environ:
        return Clock(**more)
    return Clock(**{"warm_seconds": WARM_SECONDS, "seconds": TIMED_SECONDS, **more})


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device() -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def connect() -> None:
    """Connect the ranks that a launcher started. Collective: call on every rank."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def common_folder() -> Path:
    """Return a temporary folder, the same on all ranks of a job."""
    if "MASTER_PORT" not in os.environ:
        return Path(tempfile.mkdtemp())
    folder = Path(tempfile.gettempdir()) / f"gpu_speed-{os.environ['MASTER_PORT']}"
    folder.mkdir(exist_ok=True)
    return folder


def batches(task: Any) -> Iterator[dict[str, Tensor]]:
    """Yield this rank's batches without end: the rows that samecurve takes, in the same order."""
    data = task.build_data()
    rows = data.train
    world, examples = world_size(), MODELS[task.name].examples
    first = dist.get_rank() * examples if world > 1 else 0

    epoch = 0
    while True:
        order = epoch_order(len(rows), SEED, epoch).tolist()
        starts = range(first, len(rows), world * examples)
        indices = [order[start : start + examples] for start in starts]
        yield from DataLoader(
            rows,
            batch_sampler=indices,
            collate_fn=data.collate,
            pin_memory=torch.cuda.is_available(),
        )
        epoch += 1


def by_hand(task: Any, compiled: bool, clock: Clock, *, wrapped: bool = False) -> None:
    """Train in a plain loop, in DDP's wrapper where there are several ranks.

    Args:
        task: a ``Llama``, or the packed rows of ``gpu_language.py``.
        wrapped: use the wrapper for one rank as well; the ranks are connected.
    """
    torch.manual_seed(SEED)
    model: Any = task.build_model().to(device())
    if compiled:
        compile_layers(model)
    if wrapped or world_size() > 1:
        model = DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)

    for batch in batches(task):
        sent = {name: values.to(device(), non_blocking=True) for name, values in batch.items()}
        with torch.autocast(device().type, dtype=torch.bfloat16):
            loss = task.training_step(model, sent)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        if clock.tick(loss):
            return


def ours(
    task: Any,
    compiled: bool,
    clock: Clock,
    *,
    files: Mapping[str, str] | None = None,
    **settings: Any,
) -> None:
    """Train with samecurve.

    Args:
        files: launch files, by the name of ``launch``'s argument; none for one process or replicas.
        settings: more keys of the training config.
    """
    config = TrainConfig(
        task="benchmarks:none", output_dir=str(common_folder() / "run"), overwrite=True,
        max_steps=MOST, lr=LR, weight_decay=0.0, seed=SEED,
        micro_batch_size=MODELS[task.name].examples, optimizer="adamw", mixed_precision="bf16",
        max_grad_norm=CLIP, compile=compiled, log_every=1000, keep_last=0,
        **settings,
    )  # fmt: skip
    run = Trainer(task, config, trainer.launch(config, **(files or {})))
    for info in run.steps():
        if clock.tick(info.loss):
            break
    run.run.close()


def transformers_trainer(task: Llama, compiled: bool, clock: Clock) -> None:
    """Train with transformers.Trainer; its batches come in another order."""
    from transformers import Trainer as Other
    from transformers import TrainerCallback, TrainingArguments

    class Tick(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = clock.tick()

    torch.manual_seed(SEED)
    model = task.build_model()
    if compiled:
        compile_layers(model)  # its own torch_compile takes the whole model: a dense mask
    arguments = TrainingArguments(
        output_dir=str(common_folder()), max_steps=MOST,
        per_device_train_batch_size=MODELS[task.name].examples, learning_rate=LR, weight_decay=0.0,
        lr_scheduler_type="constant", max_grad_norm=CLIP, optim="adamw_torch_fused", bf16=True,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
        ddp_find_unused_parameters=False, average_tokens_across_devices=False,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip

    def loss_of(outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        return mean_loss(outputs["logits"], labels)

    Other(
        model,
        arguments,
        train_dataset=task.build_data().train,
        callbacks=[Tick()],
        compute_loss_func=loss_of,
    ).train()


CONTESTANTS: dict[str, Callable[[Llama, bool, Clock], None]] = {
    "by hand": by_hand,
    "samecurve": ours,
    "transformers.Trainer": transformers_trainer,
}


def rehearsed_bytes(name: str, world: int) -> int:
    """Return what a rehearsal says that a GPU takes with replicas of the model, not compiled."""
    replicas = ROOT / "accel_configs" / ("ddp.yaml" if world > 1 else "single.yaml")
    job = Job(
        launch_file=dict(read_document(str(replicas)).data),
        words=[
            *("--task=benchmarks.gpu_speed:Llama", f"--task_settings.name={name}"),
            *("--mixed_precision=bf16", "--max_steps=2", "--lr=1e-4", "--keep_last=0"),
            f"--micro_batch_size={MODELS[name].examples}",
        ],
        gpus=world,
        gpu="H100",
    )
    (found,) = job.rehearse()
    return found["most"]


def measure(name: str, *, compiled: bool) -> dict[str, Any]:
    """Train with each contestant in turn, and return what their steps cost."""
    task, world = Llama(name=name), world_size()
    tokens = MODELS[name].tokens * world
    parameters = sum(p.numel() for p in task.build_model().parameters())
    found: dict[str, Any] = {
        "parameters": parameters,
        "tokens_per_step": tokens,
        "compiled": compiled,
        "world": world,
    }
    for contestant, loop in CONTESTANTS.items():
        forget()
        clock, begun = patient(), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            loop(task, compiled, clock)
        rate = tokens / clock.median
        found[contestant] = {
            "seconds_per_step": clock.median,
            "tokens_per_second": rate,
            "peak_bytes": clock.allocated,
            "seconds_in_all": round(time.perf_counter() - begun, 1),
        }
    found["rehearsed_bytes"] = rehearsed_bytes(name, world)
    return found


def missing_memory(name: str) -> str:
    """Return what a GPU lacks for a model; "" where it fits, and on a CPU."""
    needed = MODELS[name].gib
    if torch.cuda.is_available():
        if torch.cuda.get_device_properties(0).total_memory < needed * 2**30:
            return f"needs a GPU of {needed} GiB"
    return ""


def forget() -> None:
    """Leave nothing of a contestant to the next one."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", choices=list(MODELS))
    parser.add_argument("--json", help="write the figures to this file as well")
    parser.add_argument("--not_compiled", action="store_true")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        connect()
    main_process = not dist.is_initialized() or dist.get_rank() == 0
    found: dict[str, Any] = {}
    for name in args.models:
        missing = missing_memory(name)
        if missing:
            found[name] = {"error": missing}
            continue
        found[name] = measure(name, compiled=not args.not_compiled)
        for contestant in CONTESTANTS if main_process else ():
            measured = found[name][contestant]
            speed = f"{1e3 * measured['seconds_per_step']:9.2f} ms a step {measured['tokens_per_second']:12,.0f} tokens/s"
            print(
                f"{name:6} {contestant:22} {speed}  peak {measured['peak_bytes'] / 2**30:6.2f} GiB"
            )
    if args.json and main_process:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    trainer.run_and_exit(main)
