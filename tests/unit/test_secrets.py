"""A secret among a task's settings reaches the task, and no file of its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Gated
from launchers import json_in
from one_process import checkpoint, reseal

import trainer
from trainer import ConfigError, Trainer
from trainer.text import HIDDEN, hidden

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
SECRET = "hf_abcdefgh"


def run(folder: Path, *words: str) -> Gated:
    given = [
        "--task",
        "brought_tasks:Gated",
        "--output_dir",
        str(folder),
        "--max_steps",
        "4",
        "--save_every",
        "2",
    ]
    loaded = trainer.load_config([*words, *given])
    task, config, *_ = trainer.load_task(loaded)
    Trainer(task, config, origins=loaded.origins).fit()
    assert isinstance(task, Gated)
    return task


def test_a_secret_is_written_nowhere_and_must_be_given_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    task = run(folder, "--task_settings.hf_token", SECRET)
    assert task.hf_token == SECRET, "the task gets it"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    saved = str(folder / "config.yaml")
    rule = r"config.yaml:\d+: task_settings.hf_token: '\(hidden\)': a secret, .*: --task_settings.hf_token VALUE$"
    with pytest.raises(ConfigError, match=rule):
        trainer.load_config([saved])
    another = run(
        folder, saved, "--task_settings.hf_token", "another", "--resume", "auto", "--max_steps", "4"
    )
    assert another.hf_token == "another", "that is no change of the run"


def test_checkpoints_that_hold_a_secret_are_gone_on_with(tmp_path: Path) -> None:
    """Earlier versions wrote them."""
    run(tmp_path / "run", "--task_settings.hf_token", SECRET)
    path = checkpoint(tmp_path / "run", 2)
    state = json_in(path / "state.json")
    assert state["mathematics"]["task_settings"]["hf_token"] == HIDDEN
    state["mathematics"]["task_settings"]["hf_token"] = SECRET
    (path / "state.json").write_text(json.dumps(state))
    reseal(path)
    run(tmp_path / "new", "--task_settings.hf_token", SECRET, "--resume", str(path))
    with pytest.raises(ConfigError, match=r"task_settings\.width: 4 -> 5") as told:
        run(
            tmp_path / "other",
            "--task_settings.hf_token",
            "x",
            "--task_settings.width",
            "5",
            "--resume",
            str(path),
        )
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"openai_key": "x"}, {"openai_key": HIDDEN}),
        ({"pwd": "x", "db_pwd": "x"}, {"pwd": HIDDEN, "db_pwd": HIDDEN}),
        ({"tokens": ["x", "y"]}, {"tokens": [HIDDEN, HIDDEN]}),
        ({"api_keys": {"mine": "x"}}, {"api_keys": {"mine": HIDDEN}}),
        ({"webhook_url": "https://a/b"}, {"webhook_url": HIDDEN}),
        (["postgresql://anna:x@y@host/db"], [f"postgresql://anna:{HIDDEN}@host/db"]),
        ({"url": "redis://:x@host"}, {"url": f"redis://:{HIDDEN}@host"}),
        ({"url": "https://h/a?b=c&api_key=x#d"}, {"url": f"https://h/a?b=c&api_key={HIDDEN}#d"}),
        (["Bearer sk-ant-api03-" + "a1" * 12], [f"Bearer {HIDDEN}"]),
        (["hf_" + "aB" * 17], [HIDDEN]),
        ({"credentials": {"user": ("x", 5)}}, {"credentials": {"user": (HIDDEN, 5)}}),
        ([{"api_key": "", "token": None}], [{"api_key": "", "token": None}]),
    ],
    ids=str,
)
def test_secrets_under_usual_names_and_in_addresses_are_hidden(settings: Any, shown: Any) -> None:
    assert hidden(settings) == shown
    assert hidden(shown) == shown


@pytest.mark.parametrize(
    "settings",
    [
        {"text_key": "review", "max_tokens": 5, "special_tokens": ["<s>"], "eos_token": "</s>"},
        {
            "url": "s3://bucket/a@b",
            "path": "runs/hf_llama_3_2_1b_instruct_chat_2",
            "at": "ssh://git@host/a",
        },
        {"tokens": 5, "stop_tokens": ["a"], "key": "name", "window": "pwds"},
    ],
    ids=str,
)
def test_settings_that_are_no_secrets_are_shown(settings: Any) -> None:
    assert hidden(settings) == settings


def test_a_callbacks_secret_is_in_no_line_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = f"[{{brought_tasks:Webhook: {{webhook_url: 'https://hooks/{SECRET}'}}}}]"
    run(tmp_path / "run", "--callbacks", hook, "--task_settings.hf_token", f"a://b:{SECRET}@c")
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    with pytest.raises(ConfigError, match=r"callbacks: .*a secret, which is not written down"):
        trainer.load_config(
            [str(tmp_path / "run" / "config.yaml"), "--task_settings.hf_token", "x"]
        )
