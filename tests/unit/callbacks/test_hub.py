"""What goes to the Hub, when, and what becomes of a run whose uploads fail."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Gated
from hub_server import TOKEN, Hub, hub_server
from one_process import fit, log_of
from resuming import Odd
from safetensors.torch import load
from torch import Tensor, nn

from trainer import Callback, Run, StepInfo
from trainer.callbacks import hub
from trainer.callbacks.hub import HubPush, Upload

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
BEST = {"eval_every": 1, "best_metric": "eval/loss", "push_to_hub": "anna/odd"}


@dataclass(frozen=True, kw_only=True)
class Evaluated(Odd):
    """Best after three steps."""

    def build_data(self) -> Any:
        data = super().build_data()
        return type(data)(train=data.train, evaluation=data.train[:4])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": torch.full((len(batch),), abs(self.seen.get("steps", 0) - 3.0))}


class Uploads:
    """Stands in for the processes that upload.

    Args:
        polls: how often a process is looked at before it has ended; waiting ends it.
        error: of each upload.
        hangs: whether none ends.
    """

    def __init__(self, polls: int = 0, error: str = "", *, hangs: bool = False) -> None:
        self.polls, self.error, self.hangs = polls, error, hangs
        self.begun: list[Upload] = []
        self.weights: list[bytes] = []
        self.ended: list[Upload] = []

    def __call__(self, repo: str, upload: Upload, *, private: bool) -> Any:
        assert repo == "anna/odd"
        self.begun.append(upload)
        if upload.copy is not None:
            self.weights.append((upload.copy / "model.safetensors").read_bytes())
        uploads, polls = self, [self.polls]

        class Process:
            def __init__(self) -> None:
                self.upload = upload

            def has_ended(self) -> bool:
                polls[0] -= 1
                return polls[0] < 0 and not uploads.hangs

            def wait(self, seconds: float) -> bool:
                polls[0] = 0
                if uploads.hangs:
                    time.sleep(seconds)
                return not uploads.hangs

            def end(self) -> None:
                uploads.ended.append(upload)

            def answer(self) -> dict[str, str]:
                return {"error": uploads.error} if uploads.error else {"address": "http://hub/1"}

        return Process()

    @property
    def pushed(self) -> list[tuple[str | None, str]]:
        return [(one.branch, one.message) for one in self.begun if one.source is not None]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Uploads:
    uploads = Uploads()
    monkeypatch.setattr(hub, "_Process", uploads)
    monkeypatch.setattr(hub, "_obstacle", lambda: "")
    return uploads


def best_at(step: int, value: float) -> tuple[None, str]:
    return None, f"eval/loss {value:g} at step {step}, the best so far"


def test_each_best_model_goes_to_the_main_branch_and_the_last_one_to_its_own(
    tmp_path: Path, uploads: Uploads
) -> None:
    fit(tmp_path, Evaluated(), **BEST)
    assert uploads.begun[0] == Upload(), "the repository is created beside the first step"
    bests = [best_at(1, 2), best_at(2, 1), best_at(3, 0)]
    assert uploads.pushed == [*bests, ("last", "the last model, of step 8")]
    best, last = load(uploads.weights[2]), load(uploads.weights[3])
    assert any(not best[name].equal(last[name]) for name in best)
    assert uploads.weights[2] == (tmp_path / "best" / "model.safetensors").read_bytes()
    assert not (tmp_path / ".hub").exists()
    said = log_of(tmp_path)
    assert (
        "note: push_to_hub: each best model, and the last one in its branch 'last': anna/odd (public"
        in said
    )
    assert "push_to_hub: eval/loss 0 at step 3, the best so far: http://hub/1" in said
    assert "not on the Hub" not in said


def test_without_a_best_model_the_last_one_goes_to_the_main_branch(
    tmp_path: Path, uploads: Uploads
) -> None:
    fit(tmp_path, push_to_hub="anna/odd", hub_private=True)
    assert uploads.pushed == [(None, "the last model, of step 8")]
    assert "note: push_to_hub: the last model: anna/odd (private)" in log_of(tmp_path)


def test_an_upload_in_flight_is_waited_for_by_the_newest_model_alone(
    tmp_path: Path, uploads: Uploads
) -> None:
    uploads.polls = 2  # the repository takes two steps, and each model as well
    fit(tmp_path, Evaluated(), **BEST)
    assert uploads.pushed == [
        best_at(2, 1),  # it took the place of step 1
        best_at(3, 0),
        ("last", "the last model, of step 8"),
    ]


def test_what_did_not_arrive_is_tried_again_at_the_end_and_then_told(
    tmp_path: Path, uploads: Uploads
) -> None:
    uploads.error = "ConnectError: no network"
    run = fit(tmp_path, Evaluated(), **BEST)
    assert run.step == 8
    assert uploads.pushed[-2:] == [best_at(3, 0), ("last", "the last model, of step 8")]
    lines = [line for line in log_of(tmp_path).splitlines() if "push_to_hub" in line][1:]
    assert lines == [
        "note: push_to_hub: anna/odd: ConnectError: no network",
        "push_to_hub: waiting for uploads, for 300 s at most",
        f"push_to_hub: not on the Hub; upload it with: hf upload anna/odd {tmp_path}/best .",
        f"push_to_hub: not on the Hub; upload it with: hf upload anna/odd {tmp_path}/model . --revision last",
    ]


def test_an_upload_that_does_not_end_is_given_up(tmp_path: Path, uploads: Uploads) -> None:
    uploads.hangs = True
    fit(tmp_path, Evaluated(), timeout_minutes=0.002, **BEST)
    assert uploads.ended == uploads.begun == [Upload()], "nothing else is begun afterwards"
    assert "has not arrived after 0 s at the end of the run" in log_of(tmp_path)
    assert log_of(tmp_path).count("upload it with: hf upload anna/odd") == 2


def test_a_folder_that_cannot_be_copied_ends_no_run(
    tmp_path: Path, uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RecursionError("a file of the task\nand more")

    monkeypatch.setattr(hub, "copy_for_upload", fail)
    run = fit(tmp_path, push_to_hub="anna/odd")
    assert run.step == 8 and uploads.pushed == []
    said = log_of(tmp_path)
    assert "note: push_to_hub: the last model, of step 8: RecursionError: a file" in said
    assert f"hf upload anna/odd {tmp_path}/model ." in said


class Stops(Callback):
    """Asks for the end of the training, as a signal does."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.step == 4:
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_leaves_no_time_for_the_last_model(tmp_path: Path, uploads: Uploads) -> None:
    from trainer.distributed.exit import Stopped

    with pytest.raises(Stopped):
        fit(tmp_path, Evaluated(), Stops(), **BEST)
    assert uploads.pushed == [best_at(1, 2), best_at(2, 1), best_at(3, 0)]
    assert "/model . --revision last" in log_of(tmp_path)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("HF_TOKEN", "no token: run hf auth login, or set HF_TOKEN"),
        ("HF_HUB_OFFLINE", "HF_HUB_OFFLINE is set"),
    ],
)
def test_what_is_in_the_way_is_known_before_the_first_step(
    variable: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if variable == "HF_HUB_OFFLINE" else "0")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr(hub, "_Process", None)
    fit(tmp_path / "run", push_to_hub="anna/odd")
    lines = [line for line in log_of(tmp_path / "run").splitlines() if "push_to_hub" in line]
    assert lines[1] == f"note: push_to_hub: {said}; until then nothing is uploaded"
    assert lines[-1].endswith(f"hf upload anna/odd {tmp_path}/run/model .")


def test_other_processes_upload_nothing(uploads: Uploads) -> None:
    class OtherRank:
        is_main = False

    push, run = HubPush("anna/odd", private=False, best=None), OtherRank()
    push.on_start(run)  # type: ignore[arg-type]
    push.on_step(run, None)  # type: ignore[arg-type]
    push.on_end(run, {})  # type: ignore[arg-type]
    assert uploads.begun == []


def test_a_folder_of_copies_is_one_of_a_run(tmp_path: Path, uploads: Uploads) -> None:
    fit(tmp_path, push_to_hub="anna/odd")
    (tmp_path / ".hub" / "best-3").mkdir(parents=True)
    (tmp_path / ".hub" / "best-3" / "model.safetensors").write_text("left by a run that was killed")
    fit(tmp_path, push_to_hub="anna/odd", overwrite=True)
    assert not (tmp_path / ".hub").exists()


# -- with huggingface_hub itself, and a server that stands in for the Hub


@dataclass(frozen=True, kw_only=True)
class Telling(Gated):
    """Writes what it knows beside its model: secrets and paths."""

    bucket: str = ""
    where: str = ""

    def save_extras(self, directory: Path) -> None:
        text = f"{self.hf_token} {self.where} {Path.home()}/data/x"
        (directory / "settings.json").write_text(
            f'{{"where": "{self.where}", "note": "{self.hf_token}"}}'
        )
        (directory / "NOTES.md").write_text(text)

    def model_card(self, run: Any) -> str:
        return f"# {self.where}\n\ntoken {self.hf_token}, {run['step']} steps"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with hub_server() as served:
        for name, value in served.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield served


def test_no_secret_and_no_path_is_in_any_byte_that_is_sent(
    tmp_path: Path, stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SERVICE_API_KEY", "key-of-my-service")
    where = tmp_path / "data"
    where.mkdir()
    task = Telling(hf_token="hf_of-the-task", where=str(where))
    settings = {"eval_every": 2, "best_metric": "eval/loss", "push_to_hub": "anna/odd"}
    fit(tmp_path / "run", task, micro_batch_size=8, max_steps=4, hub_private=True, **settings)

    assert stand_in.created[0] == {"name": "odd", "organization": "anna", "visibility": "private"}
    assert [commit.branch for commit in stand_in.commits] == ["main"] * (
        len(stand_in.commits) - 1
    ) + ["last"]
    assert stand_in.tokens <= {f"Bearer {TOKEN}", None}
    commit = stand_in.commits[-1]
    assert set(commit.files) == {"README.md", "NOTES.md", "settings.json", "model.safetensors"}
    assert commit.files["README.md"].decode() == "# data\n\ntoken (hidden), 4 steps"
    exported = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert commit.files["model.safetensors"] == exported
    sent = stand_in.sent()
    for secret in (
        "hf_of-the-task",
        "key-of-my-service",
        TOKEN,
        str(tmp_path),
        str(Path.home()) + "/",
    ):
        assert secret.encode() not in sent, secret
    assert TOKEN not in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "push_to_hub: anna/odd: "), (403, "push_to_hub: anna/odd: "), (404, "anna/odd: ")],
)
def test_a_server_that_refuses_is_one_notice(
    status: int, said: str, tmp_path: Path, stand_in: Hub
) -> None:
    stand_in.status = status
    fit(tmp_path / "run", push_to_hub="anna/odd")
    log = log_of(tmp_path / "run")
    assert str(status) in log and said in log and "hf upload anna/odd" in log
    assert log.count("note: push_to_hub: anna/odd: ") == 1 and "Request ID" not in log


def test_a_process_that_dies_says_what_it_printed(
    tmp_path: Path, stand_in: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "no number")  # its import fails
    fit(tmp_path / "run", push_to_hub="anna/odd")
    assert "invalid literal for int() with base 10: 'no number'" in log_of(tmp_path / "run")
