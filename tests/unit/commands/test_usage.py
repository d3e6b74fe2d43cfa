"""The command line of a command: options, settings and files in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field

from trainer.commands import cli
from trainer.commands.usage import only_folders, read_words
from trainer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    gpus_per_machine: Annotated[int, "of the cluster", Field(ge=1)] = 8
    verify: Annotated[bool, "read every byte"] = False


@pytest.mark.parametrize(
    "line",
    [
        "fsdp.yaml --gpus_per_machine 4 train.yaml --lr 3",
        "--config train.yaml --accel_config fsdp.yaml lr=3 gpus-per-machine=4",
        "--lr=3 --config=train.yaml --gpus-per-machine=4 fsdp.yaml",
    ],
)
def test_every_order_and_spelling_is_the_same(line: str) -> None:
    options, settings, words = read_words("", Options, line.split())
    assert options == Options(gpus_per_machine=4)
    assert (settings, sorted(words)) == (["--lr=3"], ["fsdp.yaml", "train.yaml"])


def test_a_flag_does_not_take_a_folder_as_its_value() -> None:
    options, _, folders = read_words("", Options, ["--verify", "folder"])
    assert options.verify and folders == ["folder"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("a --gpus_per_machine 0", "gpus_per_machine: 0: must be greater than or equal to 1"),
        ("a --gpus_per_machine", "gpus_per_machine: needs a value: --gpus_per_machine VALUE"),
        ("a --gpu_per_machine 4", "'--gpu_per_machine=4': unknown word; --help shows"),
        ("s3://bucket/run", "is an address"),
        ("a --lr 3", "'--lr=3': unknown word; --help shows the command"),
        ("a b", "'b': unknown word; --help shows the command"),
        ("--verify", "name a folder; --help shows the command"),
    ],
)
def test_a_mistake_is_one_line(line: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        only_folders(*read_words("", Options, line.split())[1:])
    assert rule in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_all_commands_has_the_same_grammar(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main([name, "--help"])
    assert leaving.value.code == 0
    shown = capfd.readouterr().out
    assert f"trainer {name}" in shown and "Words stand in any order." in shown
