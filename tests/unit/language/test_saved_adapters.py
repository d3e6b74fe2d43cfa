"""Runs of peft models end, go on and are compared as those of any other model, though their export
is an adapter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought_language import Language
from launchers import ROOT
from safetensors.torch import load_file
from torch import nn

from trainer import ConfigError, TrainConfig, Trainer
from trainer.commands import cli
from trainer.strategies.tensors import canonical_state


def configured(folder: Path, **settings: Any) -> TrainConfig:
    given = {"max_steps": 6, "micro_batch_size": 8, "lr": 0.01, "log_every": 1, **settings}
    return TrainConfig(task="brought_language:Language", output_dir=str(folder), **given)


def state(folder: Path, **settings: Any) -> Trainer:
    return Trainer(Language(kind="lora"), configured(folder, **settings))


def finished(folder: Path) -> Path:
    trainer = state(folder)
    trainer.fit()
    trainer.run.close()
    return folder


def test_a_finished_run_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = (finished(tmp_path / "run") / "summary.json").read_bytes()
    again = state(tmp_path / "run", resume="auto")
    again.fit()
    again.run.close()
    assert "finished already at step 6; nothing to do" in capsys.readouterr().out
    assert (tmp_path / "run/summary.json").read_bytes() == summary
    state(tmp_path / "run", overwrite=True).run.close()  # an exported adapter is of a run


def test_an_exported_adapter_gives_the_weights_to_start_with(tmp_path: Path) -> None:
    exported = finished(tmp_path / "run") / "model"
    run = state(tmp_path / "new", weights=str(exported)).run
    built = canonical_state(Language(kind="lora").build_model())
    held = load_file(exported / "adapter_model.safetensors")
    tensors = canonical_state(run.model)
    names = run.parts.model_file.names
    assert names and sorted(names.values()) == sorted(held)
    assert all(torch.equal(tensors[name], held[stored]) for name, stored in names.items())
    assert tensors.keys() == built.keys()
    run.close()


def test_a_checkpoint_leaves_out_the_weights_below_the_adapter(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    [newest, *_] = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    held = {key for path in newest.glob("rank-*.safetensors") for key in load_file(path)}
    assert any("lora_" in key for key in held) and all(
        "lora_" in key or key.startswith("rng.") for key in held
    ), held


def test_resuming_an_adapter_on_other_base_weights_is_refused(tmp_path: Path) -> None:
    checkpoints = finished(tmp_path / "run") / "checkpoints"
    newest = str(max(checkpoints.glob("step-*")))
    config = configured(tmp_path / "new", resume=newest)
    with pytest.raises(ConfigError, match=r'base_weights: "[0-9a-f]{16}" -> "[0-9a-f]{16}"'):
        Trainer(OtherBase(kind="lora"), config)


class OtherBase(Language):
    """The same settings, but other weights below the adapter."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        with torch.no_grad():
            model.get_parameter("base_model.model.lm_head.weight")[0, 0] += 1.0
        return model


# two launches: that adapters are the same under every strategy, test_user_models.py shows
@pytest.mark.slow
def test_parity_compares_adapters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "train.yaml").write_text(
        "task: adapted:Language\ntask_settings: {kind: lora}\n"
        "micro_batch_size: 4\nglobal_batch_size: 8\n"
        "lr: 0.01\neps: 1e-4\nmax_steps: 6\n"
    )
    workers = str(ROOT / "tests/workers")
    imported = (
        f"import sys; sys.path.insert(0, {workers!r})\nfrom brought_language import Language\n"
    )
    (tmp_path / "adapted.py").write_text(imported)
    words = [
        "parity",
        "accel_configs/ddp.yaml",
        "--config",
        str(tmp_path / "train.yaml"),
        "--steps",
        "3",
    ]
    assert cli.main(words) == 0, capsys.readouterr().out
    row = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("same"))
    assert float(row.split()[-2]) < 1e-2, "the weights are compared as well"
