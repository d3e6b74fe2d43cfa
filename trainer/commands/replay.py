r"""``trainer replay RUN --step N``: compute steps of a run again, and compare all bits.

    trainer replay runs/llama --step 1234
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer replay runs/llama --step 1234

RUN was trained with same_bits: true. The steps from the nearest checkpoint before step N to step N
are computed again, on one process or any other layout, and compared with RUN/digests.jsonl. The
command names the first step, micro-batch, rank and tensor that differ. RUN is only read.

The exit code is 0 if nothing differs, and 1 if something does.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

from pydantic import Field

from ..callbacks.digest_file import FILE
from ..checkpoint.compatibility import differences
from ..checkpoint.discover import listing
from ..config.naming import as_literal
from ..distributed.exit import run_and_exit
from ..errors import TrainerError, usage_error
from ..reporting.say import say
from ..script import launch_as, load_config, load_task
from ..strategies.exact import Exact
from ..text import listed
from .bits import Digests, difference, read_digests
from .finished_runs import Run, read_run
from .usage import read_words

# The steps alone are computed. Files and evaluations would change no bit of a step.
_OFF = (
    "--eval_every=null",
    "--sanity_evaluation=false",
    "--save_every=null",
    "--keep_last=0",
    "--best_metric=null",
    "--early_stop_patience=null",
    "--push_to_hub=null",
    "--trackers=[]",
    "--profile_steps=null",
    "--max_time=null",
    "--accumulation_steps=null",
    "--overwrite=true",
    "--weights=null",
)


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
    folders = [word for word in words if Path(word).is_dir()]
    if len(folders) != 1:
        raise usage_error("", ", ".join(folders) or None, "name the folder of one run")
    training = read_run(folders[0])
    logged = read_digests(Path(training.path, FILE))
    if options.step not in logged.steps:
        rule = f"{training.path}/{FILE} has the steps to {max(logged.steps, default=0)}"
        raise usage_error("step", options.step, rule)

    code = training.plan.get("task_folder")  # as of `trainer evaluate`
    if code and code not in sys.path:
        say(f"note: plan.json of the run names {code}: code is imported from it")
        sys.path.append(code)
    start = _start(training, options.step)
    # The same folder on every rank, before the ranks are connected.
    job = os.environ.get("MASTER_PORT") or os.getpid()
    folder = Path(tempfile.gettempdir(), f"trainer-replay-{job}")
    others = [word for word in words if word not in folders]
    own = [f"--output_dir={as_literal(f'{folder}/run')}", f"--stop_at={options.step}", *start]
    loaded = load_config(
        [f"{training.path}/config.yaml", *others, *_of_plan(training), *_OFF, *own, *settings]
    )
    task, config = load_task(loaded)
    trainer = Trainer(task, config, launch_as(loaded, task, config), origins=loaded.origins)
    strategy = trainer.run.strategy
    assert isinstance(strategy, Exact)
    if options.sums and trainer.run.plan.world_size > 1:
        raise usage_error("sums", True, "counts on one process only")
    strategy.bits.counts_rounded = options.sums
    for _ in trainer.steps():
        pass
    report: tuple[bool, str] | None = None
    if trainer.run.is_main:
        report = _report(logged, read_digests(Path(folder, "run", FILE)))
    found = trainer.run.agreement.of_main(report)
    trainer.run.close()
    shutil.rmtree(folder, ignore_errors=True)
    differs, text = found
    if options.sums:
        bits = strategy.bits
        text += f"\nof {bits.additions:,} additions of gradients float64 rounded {bits.rounded:,}"
    if differs:
        raise TrainerError(text)
    say(text)


def _start(training: Run, step: int) -> list[str]:
    """Return the settings that begin with the nearest checkpoint before a step, or with none."""
    for info in listing(Path(training.path, "checkpoints")):
        if not info.problem and info.step < step:
            return [f"--resume={info.path}"]
    first = training.plan["resume"]  # another run's checkpoint, of which this run has branched off
    weights = training.plan["weights"]
    words = [] if weights is None else [f"--weights={weights}"]
    return [*words, "--resume=none" if first == "auto" else f"--resume={first}"]


def _of_plan(training: Run) -> list[str]:
    """Return settings of the run that a launch file may have given."""
    given = {key: training.plan[key] for key in ("mixed_precision", "max_grad_norm")}
    return [f"--{key}={value or 0}" for key, value in given.items()]


def _report(logged: Digests, replayed: Digests) -> tuple[bool, str]:
    """Return whether something differs, and a text about it."""
    steps = sorted(replayed.steps)
    lines = []
    found = [(step, line) for step in steps if (line := difference(logged, replayed, step))]
    if found:
        step, line = found[0]
        lines.append(f"step {step} DIFFERS: {line}")
        same = [str(other) for other in steps if other not in dict(found)]
        lines.append(
            f"the same to the bit: steps {listed(same)}" if same else "no step is the same"
        )
    else:
        which = f"steps {steps[0]} to {steps[-1]}" if steps[1:] else f"step {steps[0]}"
        lines.append(f"{which}: nothing differs")
    lines += [f"other facts: {line}" for line in differences(logged.facts, replayed.facts)]
    return bool(found), "\n".join(lines)
