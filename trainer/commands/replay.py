r"""``trainer replay RUN --step N``: compute steps of a run again, and compare all bits.

    trainer replay runs/llama --step 1234
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer replay runs/llama --step 1234

RUN was trained with same_bits: true. The steps from the nearest checkpoint before step N to step N
are computed again, on one process or any other layout, and compared with RUN/digests.jsonl. The
command names the first step that differs, its micro-batches and tensors. RUN is only read.

The exit code is 0 if nothing differs, and 1 if something does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

from accelerate.utils import broadcast_object_list
from pydantic import Field

from ..callbacks.digest_file import FILE
from ..checkpoint.compatibility import differences
from ..checkpoint.discover import listing
from ..distributed.exit import run_and_exit
from ..errors import TrainerError, usage_error
from ..rehearsal.steps_alone import STEPS_ALONE
from ..reporting.say import say
from ..script import launch_as, load_config, load_task
from .bits import first_difference, read_digests
from .finished_runs import import_code_of, read_run
from .usage import read_words

# Files and evaluations would change no bit of a step.
_OFF = (*STEPS_ALONE, "--keep_last=0", "--max_time=null", "--accumulation_steps=null")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    step: Annotated[int, "the last step to compute again", Field(ge=1)]
    sums: Annotated[bool, "count the additions that float64 rounds; on one process"] = False


def run(argv: Sequence[str]) -> NoReturn:
    """Replay, and end the process with the right exit code."""
    run_and_exit(lambda: replay(argv))


def replay(argv: Sequence[str]) -> None:
    """Replay as the command does, without leaving the process. Collective.

    Raises:
        TrainerError: bits differ. The text says which.
        ConfigError: the run has no digests, or not of this step.
    """
    from ..loop import Trainer

    options, settings, words = read_words(__doc__, Options, argv)
    target, *files = sorted(words, key=os.path.isfile) or ["."]
    training = read_run(target)
    attempt, logged = read_digests(Path(target, FILE))
    if options.step not in logged:
        raise usage_error("step", options.step, f"{target}/{FILE} has no such step")

    import_code_of(training)
    # A launch file may have given these.
    own = [f"--{key}={training.plan[key] or 0}" for key in ("mixed_precision", "max_grad_norm")]
    own += [*_OFF, f"--stop_at={options.step}"]
    # Without a checkpoint before the step the run's own resume and weights count.
    checkpoints = listing(Path(target, "checkpoints"))
    before = [info.path for info in checkpoints if not info.problem and info.step < options.step]
    own += [f"--resume={path}" for path in before[:1]]
    loaded = load_config([f"{target}/config.yaml", *files, *own, *settings])
    task, config = load_task(loaded)
    launched = launch_as(loaded, task, config)
    if options.sums and launched.plan.world_size > 1:
        raise usage_error("sums", True, "counts on one process only")

    with TemporaryDirectory(prefix="replay-", ignore_cleanup_errors=True) as folder:
        (shared,) = broadcast_object_list([folder])
        config = replace(config, output_dir=shared)
        trainer = Trainer(task, config, launched, origins=loaded.origins)
        counts: Counter[str] = Counter()
        if options.sums:
            strategy: Any = trainer.run.strategy
            strategy.counts = counts
        for _ in trainer.steps():
            pass
        trainer.run.close()
        if not trainer.run.is_main:
            return
        own_attempt, done = read_digests(Path(folder, FILE))

    differs = first_difference(attempt["tensors"], logged, done)
    text = f"steps {min(done)} to {options.step}: {differs or 'nothing differs'}"
    for line in differences(attempt["facts"], own_attempt["facts"]):
        text += f"\nother facts: {line}"
    if options.sums:
        sums = "\nof {additions:,} additions of gradients float64 rounded {rounded:,}"
        text += sums.format_map(counts)
    if differs:
        raise TrainerError(text)
    say(text)
