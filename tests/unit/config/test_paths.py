"""Addresses of other file systems are refused wherever a path is wanted, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer import CheckpointError, ConfigError, DataError, TrainConfig, prepare_once
from trainer.checkpoint.exported import write_model
from trainer.config.load import check_settings, load_config
from trainer.config.paths import not_local

ELSEWHERE = "this machine's file system only"


@pytest.mark.parametrize("scheme", ["s3", "gs", "hf", "abfs", "memory", "https", "S3"])
def test_an_address_is_no_path(scheme: str) -> None:
    assert ELSEWHERE in not_local(f"{scheme}://bucket/run")
    assert ELSEWHERE in not_local(Path(f"{scheme}://bucket/run")), (
        "of which pathlib leaves one slash"
    )


@pytest.mark.parametrize(
    "path", ["runs/a", "/data/s3/x", "hf:org/name@train", "C:/runs", "./s3:x", "~/a:b/c", "none"]
)
def test_a_path_is_taken(path: str) -> None:
    assert not_local(path) == ""


@pytest.mark.parametrize("key", ["output_dir", "resume", "weights"])
def test_in_the_training_config(key: str, here: Path) -> None:
    Path("a.yaml").write_text(f"task: m:T\nepochs: 1\n{key}: s3://bucket/run\n")
    with pytest.raises(
        ConfigError, match=rf"^a.yaml:3: {key}: 's3://bucket/run': is an address: .*{ELSEWHERE}"
    ):
        load_config(["a.yaml"])
    with pytest.raises(ConfigError, match=f"^command line: {key}: 'gs://b': is an address"):
        load_config(["--task", "m:T", "--epochs", "1", f"--{key}", "gs://b"])
    with pytest.raises(ConfigError, match=f"^TrainConfig: {key}: "):
        TrainConfig(task="m:T", epochs=1, **{key: "s3://bucket/run"})
    assert os.listdir() == ["a.yaml"]


def test_in_what_code_writes(here: Path) -> None:
    with pytest.raises(CheckpointError, match="is an address"):
        write_model(Path("s3://a/b"), "model.safetensors", [], [], lambda folder: None)
    with pytest.raises(DataError, match="cache 's3://a/b': is an address"):
        prepare_once("s3://a/b", 1, lambda folder: None)
    assert os.listdir() == []


def test_in_the_settings_of_a_language_task() -> None:
    from trainer.language import CausalLM

    words = ["--task", "m:T", "--epochs", "1", "--task_settings.data", "[a.txt, 's3://a/b']"]
    loaded = load_config(
        [*words, *(f"task_settings.{key}=s3://a" for key in ("model", "cache_dir"))]
    )
    with pytest.raises(ConfigError) as caught:
        check_settings(CausalLM, loaded.config.task_settings, loaded)
    told = [line.split(": is an address")[0] for line in str(caught.value).splitlines()]
    assert told == [
        "command line: task_settings.model: 's3://a'",
        "command line: task_settings.cache_dir: 's3://a'",
        "command line: task_settings.data.1: 's3://a/b'",
    ]
