"""W&B's environment variables beside the training config: each takes effect, or is named.

What ``wandb.init`` is given goes before the environment (wandb 0.31), so a variable of something
that we give would be ignored silently. WANDB_ENTITY, WANDB_NOTES and others that we do not give
are read by wandb itself; so is WANDB_SWEEP_ID, under which it takes project and run id from the
environment whatever it is given. WANDB_NAME is in ``config/naming.py``, WANDB_RUN_ID and
WANDB_MODE in ``wandb_run.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config.naming import experiment_of
from ..config.train_config import DEFAULTS, TrainConfig
from ..errors import ConfigError, Origin, Problem

# Variables that change nothing here, why, and the values that say what holds anyway.
_WITHOUT_EFFECT = {
    "WANDB_DIR": ("its files are in the run's folder, for compare and for resume", ()),
    "WANDB_RESUME": ("resume: auto continues the run that is in tracking.json", ("allow",)),
    "WANDB_CONSOLE": ("the terminal's lines are in log.txt, and are not sent", ("off",)),
    "WANDB_SILENT": ("wandb prints nothing, what matters is said here", ("true",)),
    "WANDB_SAVE_CODE": ("no code is sent", ("false",)),
    "WANDB_INIT_TIMEOUT": ("a server that does not answer is given up after 10 seconds", ()),
    # Of other trainers, which users bring along.
    "WANDB_LOG_MODEL": ("transformers reads it; here: track_model: true", ("false",)),
    "WANDB_WATCH": ("transformers reads it; gradients are not sent", ("false",)),
    "WANDB_DISABLED": ("transformers reads it; leave wandb out of trackers", ("false",)),
}


@dataclass(frozen=True, kw_only=True)
class WandbSettings:
    """What a run is called on W&B, of the config or of W&B's variables.

    Args:
        project, group, job_type: as ``wandb.init`` takes them.
        tags: those of the user; the layout adds its own.
        notices: variables that have no effect, a line each.
    """

    project: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    notices: tuple[str, ...]

    @classmethod
    def of(cls, config: TrainConfig, environment: Mapping[str, str]) -> WandbSettings:
        """Choose between the config, where it says something, and the environment.

        Raises:
            ConfigError: wandb refuses the value of a variable.
        """
        _check_values(environment)
        in_sweep = bool(environment.get("WANDB_SWEEP_ID"))
        notices = []

        project = config.project
        variable = environment.get("WANDB_PROJECT")
        if variable and variable != project:
            is_default = project == DEFAULTS["project"]
            if in_sweep and not is_default:
                notices.append(f"project {project!r} has no effect: the sweep's is {variable!r}")
            if in_sweep or is_default:
                project = variable
            else:
                notices.append(f"WANDB_PROJECT {variable!r} has no effect: project is {project!r}")

        group = experiment_of(config)
        variable = environment.get("WANDB_RUN_GROUP")
        if variable and config.experiment is None:
            group = variable
        elif variable and variable != group:
            notices.append(f"WANDB_RUN_GROUP {variable!r} has no effect: experiment is {group!r}")

        tags = [tag.strip() for tag in environment.get("WANDB_TAGS", "").split(",")]
        return cls(
            project=project,
            group=group,
            job_type=environment.get("WANDB_JOB_TYPE") or "train",
            tags=tuple(tag for tag in tags if tag),
            notices=(*notices, *_without_effect(environment, in_sweep=in_sweep)),
        )


def _without_effect(environment: Mapping[str, str], *, in_sweep: bool) -> list[str]:
    """Return a line for each variable that is set, and changes nothing."""
    notices = []
    for name, (reason, same) in _WITHOUT_EFFECT.items():
        value = environment.get(name)
        if not value or value.lower() in same:
            continue
        if name == "WANDB_DIR" and in_sweep:
            continue  # set by W&B's agent, for files of its own
        notices.append(f"{name} {value!r} has no effect: {reason}")
    return notices


def _check_values(environment: Mapping[str, str]) -> None:
    """Check before the first step what wandb would refuse at the first logged one.

    Raises:
        ConfigError: an id or a project with a character that wandb does not take.
    """
    given = [name for name in ("WANDB_RUN_ID", "WANDB_PROJECT") if environment.get(name)]
    if not given:
        return

    import wandb

    problems = []
    for name in given:
        value = environment[name]
        try:
            wandb.Settings().update_from_env_vars({name: value})
        except (wandb.errors.UsageError, ValueError) as error:
            origin = Origin("environment", key=name)
            rule = str(error).splitlines()[0]
            problems.append(Problem(origin=origin, value=value, rule=rule))
    if problems:
        raise ConfigError(problems)
