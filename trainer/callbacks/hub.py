"""The key ``push_to_hub``: the best models and the last one go to the Hugging Face Hub.

Uploads run beside the training, one at a time, each as a process of its own (``hub_upload.py``).
A server that is slow, refuses or does not answer holds up no step and ends no run. What is uploaded
is a copy (``hub_folder.py``), so that the next best model can replace the folder meanwhile.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..config.plain import plain
from ..hooks import Callback, StepInfo, Unfinished
from ..reporting.card import plain_card
from ..run import Run
from ..text import HIDDEN, printable
from .best import Best
from .hub_folder import NotUploaded, Private, copy_for_upload, unknown_base_model

LAST = "last"  # the branch of the last model, where the main one has the best
_FOLDER = ".hub"  # of copies, in the run's folder
_SIGNAL_SECONDS = 10.0  # for an upload that runs when a signal ends the training
_SHARE_OF_TIMEOUT = 0.5  # the other ranks wait for at most timeout_minutes


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A folder on its way to the Hub.

    Args:
        source: the model's folder; None where only the repository is created.
        copy: what is uploaded of it.
        branch: None for the main one.
        message: of the commit.
        step: of the model.
    """

    source: Path | None = None
    copy: Path | None = None
    branch: str | None = None
    message: str = ""
    step: int = 0


class HubPush(Callback):
    """Pushes each new best model to the main branch of a repository, and the last one at the end.

    Without ``best_metric`` the last model goes to the main branch; with it, to the branch ``last``.

    Args:
        repo: ``USER/NAME``.
        private: create it as a private one.
        best: which model is the best, if one is kept.
    """

    def __init__(self, repo: str, *, private: bool, best: Best | None) -> None:
        self.repo = repo
        self.private = private
        self._best = best
        self._running: _Process | None = None
        self._next: Upload | None = None
        self._arrived: dict[str | None, Upload] = {}  # the last one in each branch
        self._said: set[str] = set()

    def on_launch(self, run: Unfinished) -> None:
        """Say what will be pushed where, and what is in the way. No server is asked."""
        branches = "each best model, and the last one in its branch 'last'"
        if self._best is None:
            branches = "the last model"
        new = "private" if self.private else "public, unless it is there already"
        run.note(f"push_to_hub: {branches}: {self.repo} ({new})")
        if run.is_main and _obstacle():
            run.note(f"push_to_hub: {_obstacle()}; until then nothing is uploaded")

    def on_start(self, run: Run) -> None:
        """Create the repository, beside the first steps: a name or token that is wrong is known."""
        if run.is_main and self._running is None:  # no evaluation was made up that had a best model
            shutil.rmtree(run.directory.path / _FOLDER, ignore_errors=True)
            self._put(run, Upload())

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Push a new best model, once what is on its way has arrived."""
        if not run.is_main:
            return

        self._poll(run)
        is_best = self._best is not None and self._best.best_step == info.step
        if is_best and info.evaluation is not None:
            self._push_best(run, info.evaluation)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Push the last model, and wait for what is on its way, but not for ever."""
        if not run.is_main:
            return

        seconds = _SHARE_OF_TIMEOUT * 60 * run.config.timeout_minutes
        if run.stop_signal:  # whoever sent it will not wait
            seconds = _SIGNAL_SECONDS
        deadline = _Deadline(seconds)
        if not _obstacle():
            run.say(f"push_to_hub: waiting for uploads, for {seconds:.0f} s at most")
        self._finish_running(run, deadline)
        if not run.stop_signal:
            self._push_at_the_end(run, deadline)
        shutil.rmtree(run.directory.path / _FOLDER, ignore_errors=True)
        self._report(run)

    # -- what is pushed ---------------------------------------------------------------------------

    def _push_best(self, run: Run, evaluation: Mapping[str, float]) -> None:
        assert self._best is not None and self._best.best_step is not None
        value = self._best.sign * self._best.best
        message = f"{self._best.metric} {value:.6g} at step {self._best.best_step}, the best so far"
        source = run.directory.path / "best"
        self._push(run, source, None, message, self._best.best_step, evaluation)

    def _push_at_the_end(self, run: Run, deadline: _Deadline) -> None:
        """Push the best model, where it has not arrived, and the last one."""
        if not deadline.seconds_left():
            return

        branch = None
        if self._best is not None and self._best.best_step is not None:
            branch = LAST
            arrived = self._arrived.get(None)
            if arrived is None or arrived.step != self._best.best_step:
                value = self._best.sign * self._best.best
                self._push_best(run, {self._best.metric: value})
                self._finish_running(run, deadline)
                if not deadline.seconds_left():
                    return

        message = f"the last model, of step {run.step}"
        source = run.directory.path / "model"
        self._push(run, source, branch, message, run.step, run.last_evaluation)
        self._finish_running(run, deadline)

    def _push(
        self,
        run: Run,
        source: Path,
        branch: str | None,
        message: str,
        step: int,
        evaluation: Mapping[str, float],
    ) -> None:
        """Copy a model's folder, and upload it once nothing else is on its way."""
        copy = run.directory.path / _FOLDER / f"{source.name}-{step}"
        upload = Upload(source=source, copy=copy, branch=branch, message=message, step=step)
        try:
            card = plain_card(self.repo, str(run.facts["task"]), run.parts.run, evaluation)
            copy_for_upload(source, copy, _private_of(run), card)
            self._say_once(run, unknown_base_model(source, copy))
        except (NotUploaded, OSError) as error:
            self._fail(run, upload, str(error))
            return
        except Exception as error:  # (whatever a task's files are, a push must not end the run)
            self._fail(run, upload, f"{type(error).__name__}: {error}")
            return
        self._put(run, upload)

    def _put(self, run: Run, upload: Upload) -> None:
        """Upload now, or next: then it takes the place of an older one that waits."""
        if self._running is not None:
            if self._next is not None:
                _drop(self._next)
            self._next = upload
            return

        obstacle = _obstacle()
        if obstacle:
            self._fail(run, upload, obstacle)
            return
        try:
            self._running = _Process(self.repo, upload, private=self.private)
        except OSError as error:
            self._fail(run, upload, f"no process can be started: {error}")

    # -- what becomes of it -----------------------------------------------------------------------

    def _poll(self, run: Run) -> None:
        """Look whether an upload has ended, and begin the next one."""
        while self._running is not None and self._running.has_ended():
            upload, answer = self._running.upload, self._running.answer()
            self._running = None
            if "error" in answer:
                self._fail(run, upload, answer["error"])
            else:
                if upload.source is not None:
                    self._arrived[upload.branch] = upload
                    run.say(f"push_to_hub: {upload.message}: {printable(answer['address'])}")
                _drop(upload)

            waiting, self._next = self._next, None
            if waiting is not None:
                self._put(run, waiting)

    def _finish_running(self, run: Run, deadline: _Deadline) -> None:
        """Wait for what is on its way; what does not arrive in time is given up."""
        while self._running is not None:
            if not self._running.wait(deadline.seconds_left()):
                upload = self._running.upload
                self._running.end()
                self._running, self._next = None, None
                seconds = f"{deadline.seconds:.0f} s"
                self._fail(run, upload, f"has not arrived after {seconds} at the end of the run")
                return
            self._poll(run)

    def _fail(self, run: Run, upload: Upload, reason: str) -> None:
        """Say once why something was not uploaded; the command to do so comes at the end."""
        _drop(upload)
        token = _token()
        if token:
            reason = reason.replace(token, HIDDEN)
        self._say_once(run, reason, about=f"{upload.message or self.repo}: ")

    def _say_once(self, run: Run, text: str, *, about: str = "") -> None:
        if text and text not in self._said:
            self._said.add(text)
            run.say(printable(f"note: push_to_hub: {about}{text}"))

    def _report(self, run: Run) -> None:
        """Say what is not on the Hub at the end, and how to upload it."""
        folder = run.directory.path
        missing = []
        has_best = self._best is not None and self._best.best_step is not None
        if has_best:
            arrived = self._arrived.get(None)
            assert self._best is not None
            if arrived is None or arrived.step != self._best.best_step:
                missing.append([str(folder / "best"), "."])
        if self._arrived.get(LAST if has_best else None) is None:
            branch = ["--revision", LAST] if has_best else []
            missing.append([str(folder / "model"), ".", *branch])

        private = ["--private"] if self.private else []
        for words in missing:
            command = shlex.join(["hf", "upload", self.repo, *words, *private])
            run.say(f"push_to_hub: not on the Hub; upload it with: {command}")


class _Deadline:
    """The time that is left for all uploads at the end of a run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())


class _Process:
    """An upload that runs as a process."""

    def __init__(self, repo: str, upload: Upload, *, private: bool) -> None:
        self.upload = upload
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by answer)
        request = {
            "repo": repo,
            "private": private,
            "folder": None if upload.copy is None else str(upload.copy),
            "branch": upload.branch,
            "message": upload.message,
        }
        quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("hub_upload.py"))],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **quiet},
        )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(request).encode())

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended within some seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def answer(self) -> dict[str, str]:
        """Return the address, or the error, of an upload that has ended."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        self._output.close()
        for line in reversed(lines):  # a package may print something at its end
            if line.startswith('{"'):
                answer: dict[str, str] = json.loads(line)
                return answer
        last = lines[-1] if lines else "it said nothing"
        return {"error": f"the upload ended with exit code {self._process.returncode}: {last}"}


def _obstacle() -> str:
    """Return why nothing can be uploaded, as far as this machine knows; "" for nothing."""
    # As the process that uploads will read them.
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{name} is set"
    if not _token():
        return "no token: run hf auth login, or set HF_TOKEN"
    return ""


def _private_of(run: Run) -> Private:
    """Return the secrets and paths of a run that must not leave the machine."""
    settings = {"config": run.config.task_settings, "task": plain(run.task)}
    paths = [str(run.directory.path), os.getcwd(), str(Path.home()), sys.prefix]
    return Private.of(settings, _token(), paths)


def _token() -> str | None:
    """Return the token of the Hub, from the environment or a login."""
    from huggingface_hub import get_token

    return get_token()


def _drop(upload: Upload) -> None:
    """Delete the copy that was made for an upload."""
    if upload.copy is not None:
        shutil.rmtree(upload.copy, ignore_errors=True)
