"""A secret among a task's settings reaches the task, and no file of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from brought_tasks import Declaring, Gated
from launchers import json_in
from one_process import checkpoint, reseal
from pydantic import SecretStr

import trainer
from trainer import ConfigError, Trainer
from trainer.callbacks.configured import configured_callbacks
from trainer.distributed.exit import print_error
from trainer.text import HIDDEN, SECRETS, hidden

SECRET = "hf_abcdefgh"


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests() -> Iterator[None]:
    SECRETS.clear()
    yield
    SECRETS.clear()


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
        ({"pwd": "x", "db_pwd": "x"}, {"pwd": HIDDEN, "db_pwd": HIDDEN}),
        ({"tokens": ["x", "y"]}, {"tokens": [HIDDEN, HIDDEN]}),
        ({"webhook_url": "https://a/b"}, {"webhook_url": HIDDEN}),
        (["postgresql://anna:x@y@host/db"], [f"postgresql://anna:{HIDDEN}@host/db"]),
        ({"url": "redis://:x@host"}, {"url": f"redis://:{HIDDEN}@host"}),
        ({"url": "https://h/a?b=c&api_key=x#d"}, {"url": f"https://h/a?b=c&api_key={HIDDEN}#d"}),
        (["Bearer sk-ant-api03-" + "a1" * 12], [f"Bearer {HIDDEN}"]),
        (["hf_" + "aB" * 17], [HIDDEN]),
        ({"credentials": {"user": ("x", 5)}}, {"credentials": {"user": (HIDDEN, 5)}}),
        ({"pin": 1234, "otp": {"a": 5}}, {"pin": HIDDEN, "otp": {"a": 5}}),
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
        {"tokens": 5, "stop_tokens": ["a"], "key": "name", "window": "pwds", "pin_memory": True},
        {"revision": "3f2a9c" * 6 + "0123", "monkey": "x", "session": "ses-01", "author": "Anna-1"},
        [
            "Qwen/Qwen2.5-VL-72B-Instruct-AWQ",
            "s3://bucket/path",
            "20240512T120000Z",
            "M2M100Encoder",
        ],
        [
            "{% for m in messages %}{{ bos_token + m['content'] }}",
            "CC(=O)OC1=CC=CC=C1C(=O)O",
            "ACGT" * 9,
        ],
    ],
    ids=str,
)
def test_settings_that_are_no_secrets_are_shown(settings: Any) -> None:
    assert hidden(settings) == settings


NAMES = (
    "pass pw db_pass auth_header mongo_uri database_url conn_str sas pem private otp pin session_id password apiKey "
    "dbPassword webhook_url my_creds aws_secret_access_key some_vendor_key signing-key headers X-Api-Key totp jwt dsn"
)
RANDOM = "q7Zp2Lx9Vt4Kc8Rb1Nw6Ys3D"
SLACK = "https://hooks.slack.com"
FORMS = [
    "https://h/c?sv=20&sig={Ab1%2F}&se=1",
    "DefaultEndpointsProtocol=https;AccountKey={Ab1+/9Zx};EndpointSuffix=core",
    "-----BEGIN EC PRIVATE KEY-----\n{MIIEab\n-----END EC PRIVATE KEY-----}",
    "https://{t0ken}@github.com/a/b",
    SLACK + "{/services/T0/B0/XXXXXXXX}",
    "sk_live_{" + RANDOM + "}",
    "ya29.{" + RANDOM + "}",
    "npm_{" + RANDOM + "}",
    "pypi-{AgEIcHlwaS5vcmc" + RANDOM + "}",
    "dapi {" + RANDOM + "} in a text",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6.{eyJzdWIiOiIxMjM0NTY3ODkwIn0." + RANDOM + "}",
    "run --db-password {hunter2} -x",
    'curl -H "Authorization: {Basic abc}" http://h',
    "{AKIAIOSFODNN7EXAMPLE}",
    "{wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY}",
    "{github_pat_11ABCDEFG0abcdefghij_abc}",
]


@pytest.mark.parametrize("name", NAMES.split())
def test_a_text_under_the_name_of_a_secret_is_hidden_whatever_it_is(name: str) -> None:
    assert hidden({"task_settings": {name: "S3ntinel-value"}}) == {"task_settings": {name: HIDDEN}}
    assert "S3ntinel" not in str(hidden({name: {"a": ["S3ntinel-value"]}}))


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_looks_like_a_secret_is_hidden_under_any_name(form: str) -> None:
    secret = form[form.index("{") + 1 : form.index("}")]
    shown = hidden({"note": [form.replace("{", "").replace("}", "")]})["note"][0]
    assert secret not in shown and HIDDEN in shown


def test_a_setting_that_is_declared_as_a_secret_is_in_no_line_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--task=brought_tasks:Declared",
        "--task_settings.gate=open sesame",
        "--task_settings.more={a: other words, b: null}",
        "--callbacks=[{brought_tasks:Declaring: {at: third words}}]",
        *("--max_steps", "2", "--save_every", "1", "--output_dir", str(tmp_path)),
    ]
    loaded = trainer.load_config(words)
    task, config = trainer.load_task(loaded)
    callbacks = configured_callbacks(config.callbacks, loaded.origins)
    assert callbacks == [Declaring(at=SecretStr("third words"))]
    Trainer(task, config, callbacks=callbacks, origins=loaded.origins).fit()
    assert config.task_settings["empty"] == ""
    captured = capsys.readouterr()
    written = captured.out + captured.err
    files = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*.*")]
    for secret in ("open sesame", "other words", "third words"):
        assert secret not in written and [text for text in files if secret in text] == []
    assert f"opened {HIDDEN}" in written
    print_error("Traceback: cannot log in with open sesame at https://t0ken@github.com")
    assert f"in with {HIDDEN} at https://{HIDDEN}@github.com" in capsys.readouterr().err


def test_no_setting_of_the_examples_and_launch_files_is_taken_for_a_secret() -> None:
    root = Path(trainer.__file__).parents[1]
    folders = [root / name for name in ("examples", "accel_configs", "ds_configs", "trainer")]
    files = [path for of in folders for form in ("*.yaml", "*.json") for path in of.rglob(form)]
    assert len(files) > 30
    for file in files:
        settings = yaml.safe_load(file.read_text())
        assert hidden(settings) == settings, file


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
        trainer.load_config([str(tmp_path / "run/config.yaml"), "--task_settings.hf_token", "x"])
