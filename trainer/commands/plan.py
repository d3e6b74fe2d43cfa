"""``trainer plan COUNT | FILE ...``: which launch files fit the memory of a GPU.

    trainer plan 7.5B --gpus 64 --gpu A100-80
    trainer plan train.yaml --gpus 2 --gpu 24GiB --micro_batch_size 2
    trainer plan my_fsdp.yaml my_zero3.json train.yaml --gpus 8

A training config is rehearsed (``trainer rehearse``) under each launch file, by default those that
``trainer new`` writes. For a number of parameters formulas give the bytes of parameters, gradients
and optimizer: docs/strategies.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from ..config.train_config import Precision
from ..errors import LaunchError
from ..rehearsal.changes import committed
from ..rehearsal.job import Job, rehearsed
from ..reporting.gpus import memory_of, usable_bytes
from ..strategies.memory import ALONE, LAYOUTS, Layout, states_of
from ..text import columns, size
from .usage import read_training

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMBT]?)", re.IGNORECASE)
_LAYERS = 32  # of a number of parameters


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    gpu: Annotated[str | None, "a name such as H100, or memory such as 24GiB"] = None
    gpus: Annotated[int, "number of all GPUs", Field(ge=1, le=16_384)] = 1
    precision: Annotated[Precision, "of a number of parameters"] = "bf16"


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the bytes of each launch file. Return 0 if a file fits or no GPU was named, else 1."""
    usable = usable_bytes(memory_of(options.gpu)) if options.gpu else math.inf
    layouts = LAYOUTS if options.gpus > 1 else ALONE
    count = _COUNT.fullmatch(" ".join([*words, *settings]))
    if count:
        trainable = round(float(count[1]) * 1000 ** " kmbt".index(count[2].lower() or " "))
        found = {_name(key): _computed(of, trainable, options) for key, of in layouts.items()}
        how = f"{options.precision}, AdamW; buffers are an upper bound, without activations"
    else:
        training, given = read_training(words, settings)
        files = {file.path: file.data for file in given} or {
            name: committed(name) for name in map(_name, layouts)
        }
        found = _rehearsed(files, training, options)
        how = "rehearsed, at the peak of a step"
    fitting = [file for file, kinds in found.items() if kinds["on the GPU"] <= usable]

    print(f"each of {options.gpus} GPUs under each launch file\n({how}):")
    rows = [[PurePath(file).stem, *map(size, kinds.values())] for file, kinds in found.items()]
    print(columns([["launch file", *next(iter(found.values()))], *rows]))
    if not fitting:
        print(f"{options.gpu}: nothing fits; take more GPUs or a smaller batch")
    elif options.gpu:
        print(f"{options.gpu}: take {fitting[0]}, the first that fits")
    return not fitting


def _name(layout: str) -> str:
    return f"accel_configs/{layout}.yaml"


def _computed(layout: Layout, trainable: int, options: Options) -> dict[str, int]:
    """Return the bytes of a GPU under a layout by kind, by formulas."""
    states = states_of(layout, trainable, options.gpus, precision=options.precision, layers=_LAYERS)
    host = states.total if layout.offloads else 0
    on_the_gpu = states.total - host + states.buffers
    return {**asdict(states), "in host memory": host, "on the GPU": on_the_gpu}


def _rehearsed(
    files: Mapping[str, Any], words: Sequence[str], options: Options
) -> dict[str, dict[str, int]]:
    """Return the bytes of a GPU at the peak of a step under each launch file that can run."""
    gpus, gpu = options.gpus, options.gpu or "H100"
    jobs = (
        (file, Job(launch_file=data, file=file, words=words, gpus=gpus, gpu=gpu))
        for file, data in files.items()
    )
    found = {
        file: {**result["phases"][result["peak"]]["at_most"], "on the GPU": result["most"]}
        for file, result in rehearsed(jobs)
    }
    if not found:
        raise LaunchError("no launch file can run")
    return found
