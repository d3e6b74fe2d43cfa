"""The command lines of the small examples."""

from __future__ import annotations

from launchers import command


def words(strategy: str, script: str) -> list[str]:
    return command("ranks", strategy, world=0 if strategy == "single" else 2, script=script)
