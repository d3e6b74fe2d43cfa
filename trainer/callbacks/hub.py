"""The key ``push_to_hub``: the best models and the last model go to the Hugging Face Hub.

Uploads run beside the training, by the thread of ``HfApi.run_as_future``. A server that is slow,
refuses or does not answer holds up no step and ends no run. What is uploaded is a copy of hard
links, so that the next best model can replace the folder meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from ..hooks import Callback, StepInfo, Unfinished
from ..run import Run
from ..text import is_secret
from .best import Best

LAST = "last"  # the branch of the last model, if the main branch has the best
_FOLDER = ".hub"  # of copies, in the run's folder
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
        self.repo = repo
        self.private = private
        self._best = best
        self._api: Any = None
        self._copies = 0
        self._uploads: dict[str, Future[Any]] = {}  # the newest of each folder

    def on_launch(self, run: Unfinished) -> None:
        """Say what will be pushed. No server is asked."""
        branches = "the last model"
        if self._best is not None:
            branches = f"each best model, and the last one in its branch {LAST!r}"
        run.note(
            f"push_to_hub: {branches}: {self.repo} ({'private' if self.private else 'public'})"
        )

    def on_start(self, run: Run) -> None:
        """Create the repository, beside the first steps."""
        if run.is_main:
            from huggingface_hub import HfApi
            from huggingface_hub.utils.tqdm import disable_progress_bars

            disable_progress_bars()
            self._api = HfApi()
            shutil.rmtree(run.directory.path / _FOLDER, ignore_errors=True)
            self._api.run_as_future(
                self._api.create_repo, self.repo, private=self.private, exist_ok=True
            )

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Push a new best model."""
        is_best = self._best is not None and self._best.best_step == info.step
        if run.is_main and is_best and info.evaluation is not None:
            self._push(run, "best", None, info.step)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Push the last model, and wait for the uploads, for half of ``timeout_minutes``."""
        if not run.is_main:
            return
        self._push(run, "model", None if self._best is None else LAST, run.step)

        seconds = _SIGNAL_SECONDS if run.stop_signal else 30 * run.config.timeout_minutes
        run.say(f"push_to_hub: waiting for uploads, for {seconds:.0f} s at most")
        wait(self._uploads.values(), timeout=seconds)
        for name, upload in self._uploads.items():
            reason = f"has not arrived after {seconds:.0f} s"
            if upload.done():
                reason = str(upload.exception() or "").partition("\n")[0]
            branch = f" --revision {LAST}" if name == "model" and self._best is not None else ""
            command = f"hf upload {self.repo} {run.directory.path / name} .{branch}"
            if reason:
                run.say(f"push_to_hub: {name}/ {reason}; upload it by: {command}")
        shutil.rmtree(run.directory.path / _FOLDER, ignore_errors=True)

    def _push(self, run: Run, name: str, branch: str | None, step: int) -> None:
        """Upload a folder of the run, once the uploads before have ended."""
        self._copies += 1
        copy = run.directory.path / _FOLDER / str(self._copies)
        shutil.copytree(run.directory.path / name, copy, copy_function=os.link)
        secrets = secrets_of(run.config.task_settings)
        message = f"Step {step}"
        self._uploads[name] = self._api.run_as_future(self._upload, copy, branch, message, secrets)

    def _upload(
        self, copy: Path, branch: str | None, message: str, secrets: Mapping[str, str]
    ) -> None:
        secret = secret_in(copy, secrets)
        if secret:
            raise ValueError(f"was not uploaded: it holds the secret {secret}")
        if branch is not None:
            self._api.create_branch(self.repo, branch=branch, exist_ok=True)
        self._api.upload_folder(
            repo_id=self.repo, folder_path=copy, revision=branch, commit_message=message
        )


def secrets_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the secrets of the environment, the Hub's token and those among a task's settings."""
    from huggingface_hub import get_token

    named = {**os.environ, **settings, "hub_token": get_token()}
    return {
        name: value
        for name, value in named.items()
        if is_secret(name) and isinstance(value, str) and len(value) >= _LEAST_SECRET
    }


def secret_in(folder: Path, secrets: Mapping[str, str]) -> str:
    """Return the name of a secret whose value stands in a text of the folder, or ""."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.stat().st_size > _LARGEST_TEXT:
            continue
        text = path.read_bytes()
        for name, value in secrets.items():
            if value.encode() in text:
                return name
    return ""
