"""The command lines of the small examples."""

from __future__ import annotations

from launchers import command


def words(strategy: str, script: str) -> list[str]:
    return command("ranks", strategy, world=0 if strategy == "single" else 2, script=script)


def digits(*, steps: int, warmup_steps: int = 0) -> list[str]:
    """Return the arguments that train the digits for some steps and log each of them."""
    config = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1"]
    return [*config, "--max_steps", str(steps), "--warmup_steps", str(warmup_steps)]
