"""Runs of peft models end, go on and are compared as those of any other model, though their export is an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought import configured
from brought_language import Language
from launchers import ROOT
from safetensors.torch import load_file

from trainer import Trainer, TrainState, launch
from trainer.commands import cli
from trainer.strategies.tensors import canonical_state

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerate"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


def state(folder: Path, **settings: Any) -> Trainer:
    config = configured(1, output_dir=str(folder), task="brought_language:Language", **settings)
    return Trainer(Language(kind="lora"), config, launch(config))


def finished(folder: Path) -> Path:
    trainer = state(folder)
    trainer.fit()
    trainer.close()
    return folder


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = (finished(tmp_path / "run") / "summary.json").read_bytes()
    again = state(tmp_path / "run", resume="auto")
    again.fit()
    again.close()
    assert "finished already at step 6; nothing to do" in capsys.readouterr().out
    assert (tmp_path / "run" / "summary.json").read_bytes() == summary


def test_an_exported_adapter_is_what_a_run_wrote(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    state(tmp_path / "run", overwrite=True).close()


def test_an_exported_adapter_gives_the_weights_to_start_with(tmp_path: Path) -> None:
    exported = finished(tmp_path / "run") / "model"
    run: TrainState = state(tmp_path / "new", weights=str(exported))
    built = dict(canonical_state(Language(kind="lora").build_model()))
    held = load_file(exported / "adapter_model.safetensors")
    tensors = dict(canonical_state(run.model))
    assert run.model_file.names and len(held) == len(run.model_file.names)
    for name, tensor in tensors.items():
        there = held[run.model_file.names[name]] if name in run.model_file.names else None
        assert there is None or torch.equal(tensor, there), name
    assert tensors.keys() == built.keys()
    run.close()


@pytest.mark.slow  # two launches: that adapters are the same under every strategy, test_brought.py shows
def test_parity_compares_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "train.yaml").write_text(
        "task: adapted:Language\ntask_settings: {kind: lora}\nmicro_batch_size: 8\nglobal_batch_size: 8\n"
        "lr: 0.01\neps: 1e-4\nmax_steps: 6\n"
    )
    workers = str(ROOT / "tests" / "workers")
    imported = f"import sys; sys.path.insert(0, {workers!r})\nfrom brought_language import Language\n"
    (tmp_path / "adapted.py").write_text(imported)
    words = ["parity", "accel_configs/ddp.yaml", "--config", str(tmp_path / "train.yaml"), "--steps", "3"]
    assert cli.main(words) == 0, capsys.readouterr().out
    row = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("same"))
    assert float(row.split()[-2]) < 1e-2, "the weights are compared as well"
