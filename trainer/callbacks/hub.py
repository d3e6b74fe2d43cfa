"""The key ``push_to_hub``: the best models and the last model go to the Hugging Face Hub.

Uploads run beside the training, by the thread of ``HfApi.run_as_future``. A server that is slow,
refuses or does not answer holds up no step and ends no run. An upload whose folder the next best
model replaces meanwhile fails, and the upload of that model follows.
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
from ..hooks import Callback, StepInfo, Unfinished
from ..run import Run
from ..text import hidden
from .best import Best

_SIGNAL_SECONDS = 10.0  # for an upload that runs when a signal ends the training
_LEAST_SECRET = 8  # characters: shorter secrets are found in every text
_LARGEST_TEXT = 1 << 20


class HubPush(Callback):
    """Pushes each new best model to the main branch of a repository, and the last model at the end.

    Without ``best_metric`` the last model goes to the main branch, otherwise to the branch
    ``last``. A folder that holds a secret is refused.

    Args:
        repo: ``USER/NAME``.
        private: create a private repository.
        best: which model is the best, if ``best_metric`` is set.
    """

    def __init__(self, repo: str, *, private: bool, best: Best | None) -> None:
        disable_progress_bars()
        self.repo = repo
        self.private = private
        self._best = best
        self._api = HfApi()
        self._uploads: dict[str, Future[Any]] = {}  # the newest by the command for its folder

    def on_launch(self, run: Unfinished) -> None:
        """Say that models will be pushed. No server is asked."""
        run.note(f"push_to_hub: {self.repo} ({'private' if self.private else 'public'})")

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Push a new best model."""
        if run.is_main and self._best is not None and self._best.best_step == info.step:
            self._push(run, "best", None)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Push the last model, and wait for the uploads, for half of ``timeout_minutes``."""
        if not run.is_main:
            return
        self._push(run, "model", None if self._best is None else "last")

        seconds = _SIGNAL_SECONDS if run.stop_signal else 30 * run.config.timeout_minutes
        wait(self._uploads.values(), timeout=seconds)
        for command, upload in self._uploads.items():
            reason = upload.exception() if upload.done() else f"no answer after {seconds:.0f} s"
            if reason is not None:
                line, _, _ = str(reason).partition("\n")
                run.say(f"push_to_hub: {line}; upload the folder by: {command}")

    def _push(self, run: Run, name: str, branch: str | None) -> None:
        """Upload a folder of the run, once the uploads before have ended."""
        folder = run.directory.path / name
        command = f"hf upload {self.repo} {folder} ."
        if branch is not None:
            command += f" --revision {branch}"
        settings = run.config.task_settings
        self._uploads[command] = self._api.run_as_future(
            self._upload, folder, branch, settings, f"Step {run.step}"
        )

    def _upload(
        self, folder: Path, branch: str | None, settings: Mapping[str, Any], message: str
    ) -> None:
        secret = secret_in(folder, settings)
        if secret:
            raise ValueError(f"{folder.name}/ holds the secret {secret}")
        self._api.create_repo(self.repo, private=self.private, exist_ok=True)
        if branch is not None:
            self._api.create_branch(self.repo, branch=branch, exist_ok=True)
        self._api.upload_folder(
            repo_id=self.repo, folder_path=folder, revision=branch, commit_message=message
        )


def secret_in(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the name of a secret whose value stands in a text of a folder, or "".

    Args:
        settings: of a task. Secrets are those of the environment, too, and the Hub's token.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    text = b"".join(file.read_bytes() for file in files if file.stat().st_size <= _LARGEST_TEXT)
    environment = {**os.environ, "PWD": "", "OLDPWD": "", "hub_token": get_token()}
    for name, value in dotted({**environment, **settings}):
        for item in value if isinstance(value, list | tuple) else [value]:
            is_secret = hidden({name: item}) != {name: item} and len(item) >= _LEAST_SECRET
            if is_secret and item.encode() in text:
                return name
    return ""
