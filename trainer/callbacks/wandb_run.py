"""A run on W&B: never in the way of training, one run per training, readable beside others.

Offline needs no key and no network. Online is tried only where there is a key, and given up where
the server does not answer within seconds; wandb itself would wait for 90 (wandb 0.31). The run's id
is kept in the run directory, so that a resumed training continues the same run.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from ..run import Run

START_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
FILE = "tracking.json"


def settings(
    trainer: Run,
    *,
    title: str,
    experiment: str,
    config: Mapping[str, Any],
    hide_command: bool,
) -> dict[str, Any]:
    """Return the arguments of ``wandb.init``: offline unless a server can be reached.

    Args:
        hide_command: the command line holds a secret, and W&B's own description of the process
            would keep it.
    """
    import wandb

    plan = trainer.plan
    mode, reason = _mode()
    if reason:
        tell_offline(trainer, reason)
    return {
        "id": _run_id(trainer),
        "resume": "allow",
        "group": experiment,
        "job_type": "train",
        "name": f"{experiment}-{title}",
        "tags": [plan.strategy, f"world-{plan.world_size}", plan.mixed_precision, plan.device],
        "config": dict(config),
        "dir": str(trainer.directory.path),
        "mode": mode,
        # The terminal's lines stand in log.txt already; they may hold what should not leave this
        # machine.
        "settings": wandb.Settings(
            console="off",
            init_timeout=START_SECONDS,
            finish_timeout=UPLOAD_SECONDS,
            save_code=False,
            silent=True,
            x_disable_meta=hide_command,
        ),
    }


def tell_offline(trainer: Run, reason: str) -> None:
    """Say in one line how to upload later."""
    text = f"wandb: offline ({reason}); upload later with: wandb sync {trainer.directory.path}/wandb/*run-*"
    trainer.directory.line(text)
    print(text, flush=True)


def give_up(trainer: Run, reason: str) -> None:
    """Go offline after a failed start: its service still holds the run's id."""
    import wandb

    wandb.teardown()
    tell_offline(trainer, reason)


def describe(run: Any, trainer: Run) -> None:
    """Define axes and summaries: every curve over optimizer steps; of losses the least counts, of
    the rest the last.
    """
    config = trainer.config
    for axis in ("step", "samples", "epoch"):
        run.define_metric(axis, hidden=axis != "step")
    for group in ("train/*", "eval/*"):
        run.define_metric(group, step_metric="step")
    for name in ("train/loss", "eval/loss"):
        run.define_metric(name, step_metric="step", summary="min,last")
    if config.best_metric is not None:
        run.define_metric(
            config.best_metric, step_metric="step", summary=f"{config.best_mode},last"
        )


def finish(trainer: Run, run: Any, summary: Mapping[str, Any]) -> None:
    """Keep the summary, the model if asked for, and end the run without waiting for ever."""
    import wandb

    flat = {"summary/peak_memory_bytes": max(summary["peak_memory_bytes"])}
    flat |= {f"summary/seconds/{name}": value for name, value in summary["seconds"].items()}
    run.summary.update(flat)
    if trainer.config.track_model:
        model = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": trainer.step})
        model.add_dir(str(trainer.directory.path / "model"))
        run.log_artifact(model)
    run.finish()


def _run_id(trainer: Run) -> str:
    path = trainer.directory.path / FILE
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["wandb"])
    name = secrets.token_hex(4)
    trainer.directory.write(FILE, json.dumps({"wandb": name}) + "\n")
    return name


def _mode() -> tuple[str, str]:
    """``online``, or ``offline`` with the reason; another mode if the environment asks for one."""
    import wandb

    asked = os.environ.get("WANDB_MODE", "online")
    if asked != "online":
        return asked, "WANDB_MODE says so" if asked == "offline" else ""
    found = wandb.setup().settings
    if not (found.api_key or _in_netrc(found.base_url)):
        return "offline", "no API key: wandb login stores one"
    return "online", ""


def _in_netrc(url: str) -> bool:
    import netrc
    from urllib.parse import urlsplit

    try:
        return netrc.netrc().authenticators(urlsplit(url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
