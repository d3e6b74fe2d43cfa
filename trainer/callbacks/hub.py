"""The key ``push_to_hub``: the best models and the last model go to the Hugging Face Hub.

Uploads run in the thread of ``HfApi.run_as_future``, so no server holds up a step or ends a run. An
upload whose folder the next best model replaces meanwhile fails, and that model's upload follows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils.tqdm import disable_progress_bars

from ..config.plain import dotted
from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import hidden
from .best import Best


class HubPush(Callback):
    """Pushes each new best model to the main branch of a repository, and the last to ``last``.

    Without ``best_metric`` the last model goes to the main branch.
    """

    def __init__(self, best: Best | None) -> None:
        disable_progress_bars()
        self._best = best
        self._api = HfApi()
        self._uploads: dict[str, Future[Any]] = {}  # the newest by the command for its folder

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Push a new best model."""
        if self._best and self._best.best_step == info.step:
            self._push(run, "best", "main")

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Push the last model, and wait for the uploads, for half of ``timeout_minutes``."""
        self._push(run, "model", "last" if self._best else "main")
        # A job that a signal ends has little time left.
        wait(
            self._uploads.values(),
            timeout=10 if run.stop_signal else 30 * run.config.timeout_minutes,
        )
        for command, upload in self._uploads.items():
            error = upload.exception() if upload.done() else "no answer in time"
            if error:
                run.say(f"push_to_hub: {error}; upload the folder by: {command}")

    def _push(self, run: Run, name: str, branch: str) -> None:
        """Upload a folder of the run, once the uploads before have ended."""
        if not run.is_main:
            return
        api = self._api
        repo: Any = run.config.push_to_hub
        folder = run.directory.path / name
        step = run.step

        def upload() -> None:
            refuse_secrets(folder, run.config.task_settings)
            api.create_repo(repo, private=run.config.hub_private, exist_ok=True)
            if branch != "main":
                api.create_branch(repo, branch=branch, exist_ok=True)
            api.upload_folder(
                repo_id=repo, folder_path=folder, revision=branch, commit_message=f"Step {step}"
            )

        command = f"hf upload {repo} {folder} . --revision {branch}"
        self._uploads[command] = api.run_as_future(upload)


def refuse_secrets(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a folder with a text that holds a secret of at least 8 characters.

    Secrets are those of the task's settings and of the environment, and the Hub's token.
    """
    content = b"".join(
        path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".safetensors"
    )
    # The names of the working folders look like those of passwords.
    values = {**os.environ, "PWD": "", "OLDPWD": "", "hub_token": get_token(), **settings}
    for name, value in dotted(values):
        for item in value if isinstance(value, list) else [value]:
            if hidden(item, name) != item and len(item) >= 8 and item.encode() in content:
                raise ValueError(f"{folder.name}/ holds the secret {name}")
