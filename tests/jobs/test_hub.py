"""Models go to the Hub once, whatever the strategy, and no answer of it ends a run.

| promised | strategies and worlds | tests |
|---|---|---|
| The best models and the last one are pushed, once | DDP on 2, all on 2 nightly | test_the_best_models_and_the_last_one_are_pushed_once |
| A run that is stopped and resumed leaves on the Hub what one leaves that was not | one process, all on 2 (nightly) | test_a_resumed_run_leaves_on_the_hub_what_one_leaves_that_was_not_stopped |
| A refusal of the server, and its silence, cost no step and no exit code | one process; DDP and ZeRO-3 on 2 nightly | test_a_server_that_refuses_or_hangs_ends_no_run |

The server is a stand-in on this machine (``tests/support/hub_server.py``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import TOKEN, Hub, hub_server
from launchers import STRATEGIES, Job, command, run, some_quick


def job(how: str, hub: Hub, tmp_path: Path, *more: str) -> Job:
    world = 0 if how == "single" else 2
    words = [*command("ranks", how, world, script="tests/workers/at_hub.py")]
    words += ["--config", "examples/configs/digits_cnn.yaml"]
    words += ["--max_steps", "12", "--eval_every", "6", "--best_metric", "eval/loss"]
    words += ["--push_to_hub", "anna/digits", *more]
    return run(words, tmp_path / "out", environment=hub.environment(tmp_path / "home"))


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_the_best_models_and_the_last_one_are_pushed_once(how: str, tmp_path: Path) -> None:
    with hub_server() as hub:
        done = job(how, hub, tmp_path).ok()
    assert (done.plan["world_size"], done.plan["strategy"]) == (2, how)
    branches = [commit.branch for commit in hub.commits]
    assert branches in (["main", "main", "last"], ["main", "last"]), "a newer best takes its place"
    assert {commit.repo for commit in hub.commits} == {"anna/digits"}

    folders = {"main": done.output_dir / "best", "last": done.output_dir / "model"}
    for branch, folder in folders.items():
        pushed = [commit for commit in hub.commits if commit.branch == branch][-1]
        exported = (folder / "model.safetensors").read_bytes()
        assert pushed.files["model.safetensors"] == exported
    for private in (TOKEN, str(tmp_path)):
        assert private.encode() not in hub.sent()
    assert "upload the folder by" not in done.out


@pytest.mark.slow
@pytest.mark.parametrize("how", ["single", *STRATEGIES])
def test_a_resumed_run_leaves_on_the_hub_what_one_leaves_that_was_not_stopped(
    how: str, tmp_path: Path
) -> None:
    with hub_server() as hub:
        job(how, hub, tmp_path / "whole").ok()
    whole = last_files(hub)

    with hub_server() as hub:
        stopped = job(how, hub, tmp_path / "stopped", "--stop_at", "6").ok()
        assert stopped.rows[-1]["step"] == 6
        assert last_files(hub).keys() == {"main", "last"}, "what it had at its stop"
        resumed = job(how, hub, tmp_path / "stopped", "--resume", "auto").ok()
    assert resumed.plan["strategy"] == how and resumed.rows[-1]["step"] == 12
    after = last_files(hub)
    assert after.keys() == whole.keys()
    for branch, files in whole.items():
        assert after[branch]["model.safetensors"] == files["model.safetensors"], branch
        assert after[branch].keys() == files.keys()


def last_files(hub: Hub) -> dict[str, dict[str, bytes]]:
    """Return the files of the newest commit of each branch."""
    return {str(commit.branch): dict(commit.files) for commit in hub.commits}


FAILURES = {
    "refuses": (Hub(status=403), "403 "),
    "hangs": (Hub(hangs=lambda path: True), "no answer in time"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(
    "how", ["single", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ddp", "zero3"))]
)
def test_a_server_that_refuses_or_hangs_ends_no_run(how: str, failure: str, tmp_path: Path) -> None:
    kind, said = FAILURES[failure]
    with hub_server(Hub(status=kind.status, hangs=kind.hangs)) as hub:
        done = job(how, hub, tmp_path, "--timeout_minutes", "0.2").ok()
    assert (done.plan["world_size"], done.plan["strategy"]) == (1 if how == "single" else 2, how)
    assert done.rows[-1]["step"] == 12 and hub.commits == []
    assert said in done.out
    for name in ("best . --revision main", "model . --revision last"):
        assert f"hf upload anna/digits {done.output_dir}/{name}" in done.out
    assert (done.output_dir / "model/model.safetensors").is_file()
