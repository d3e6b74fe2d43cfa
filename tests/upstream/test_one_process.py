"""Traps of Accelerate 1.15 and what lies below it that one process shows: a plain use gives this,
ours gives that.

Those that need two processes are in ``tests/upstream/test_two_processes.py``; all stand in
``docs/accelerate_traps.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import (
    Accelerator,
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    PartialState,
    skip_first_batches,
)
from accelerate.commands import launch as accelerate_launch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from accelerate.utils.fsdp_utils import fsdp2_apply_ac
from launch_texts import FSDP
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from trainer import TrainConfig, launch
from trainer.strategies.fsdp import FSDP2

pytestmark = pytest.mark.upstream


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def forget() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(task="m:T", max_steps=1, **settings)


# Starting, and what is left of an earlier start


@pytest.mark.parametrize(
    ("text", "flags", "called"),
    [
        ("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n", [], "simple_launcher"),
        (
            "distributed_type: MULTI_GPU\nnum_processes: 2\n",
            ["--cpu", "--num_processes", "2"],
            "simple_launcher",
        ),
        (f"{FSDP}", [], "multi_gpu_launcher"),
    ],
)
def test_accelerate_launch_starts_one_process_for_cpus(
    text: str, flags: list[str], called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_accelerate_file.py`` has ours, which refuses the first two."""
    found: list[str] = []
    for name in ("simple_launcher", "multi_gpu_launcher"):
        monkeypatch.setattr(accelerate_launch, name, lambda args, name=name: found.append(name))
    (tmp_path / "a.yaml").write_text(f"compute_environment: LOCAL_MACHINE\n{text}")
    words = ["--config_file", str(tmp_path / "a.yaml"), *flags, "train.py"]
    accelerate_launch.launch_command(accelerate_launch.launch_command_parser().parse_args(words))
    assert found == [called]


def test_one_process_with_a_rank_is_several_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert str(PartialState._prepare_backend(SimpleNamespace())[1]).endswith("MULTI_GPU")  # type: ignore[arg-type]


def test_a_variable_wins_over_the_argument_for_accumulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert Accelerator(cpu=True, gradient_accumulation_steps=2).gradient_accumulation_steps == 4
    accelerator = launch(config(accumulation_steps=2)).accelerator
    assert accelerator.gradient_accumulation_steps == 2


def test_fp16_on_a_cpu_is_left_out_without_a_word() -> None:
    bare = Accelerator(cpu=True, mixed_precision="fp16")
    assert (bare.mixed_precision, bare.native_amp, bare.scaler) == ("fp16", False, None)


def test_deepspeed_compiles_an_operator_at_the_start_on_cpus() -> None:
    import deepspeed.ops

    from trainer.strategies.deepspeed_start import without_compiled_op

    name = "deepspeed_shm_comm"
    assert name in deepspeed.ops.__compatible_ops__
    without_compiled_op()
    assert deepspeed.ops.__compatible_ops__[name] is False


# FSDP2 and DeepSpeed


def test_fsdp_reduces_gradients_in_the_dtype_of_the_model() -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.reduce_dtype == torch.bfloat16  # type: ignore[union-attr]


def gradient(recompute: Callable[[nn.Module], object] | None) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), nn.Linear(8, 1))
    model._no_split_modules = ["Sequential"]  # type: ignore[assignment]
    if recompute is not None:
        recompute(model)
    torch.manual_seed(1)
    model(torch.ones(4, 8)).sum().backward()
    return next(model.parameters()).grad  # type: ignore[return-value]


def test_fsdp_recomputes_with_another_dropout() -> None:
    settings = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_cls_names_to_wrap": ["Sequential"],
    }

    def bare(model: nn.Module) -> None:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, activation_checkpointing=True, **settings
        )  # type: ignore[arg-type]
        plugin.set_auto_wrap_policy(model)
        fsdp2_apply_ac(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)), model)

    def ours(model: nn.Module) -> None:
        made = SimpleNamespace(plan=SimpleNamespace(fsdp=settings))
        FSDP2._checkpointed(made, model, [model[0]])  # type: ignore[arg-type, index]

    assert not torch.equal(gradient(bare), gradient(None))
    assert torch.equal(gradient(ours), gradient(None))


def test_transformers_divides_models_as_soon_as_the_plugin_is_chosen() -> None:
    from transformers.integrations import is_deepspeed_zero3_enabled

    plugin = DeepSpeedPlugin(
        hf_ds_config={"zero_optimization": {"stage": 3}}, zero3_init_flag=False
    )
    plugin.select(_from_accelerator_state=True)
    assert is_deepspeed_zero3_enabled(), "though zero3_init_flag is false"
    plugin.dschf = None  # as the strategy does
    assert not is_deepspeed_zero3_enabled()


# Optimizer and data


class Count(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_a_stream_is_read_by_the_main_process_for_all() -> None:
    """``test_stream.py`` has ours, where each rank reads its own samples."""
    assert (
        type(Accelerator(cpu=True).prepare(DataLoader(Count()))).__name__ == "DataLoaderDispatcher"
    )


def continued(folder: Path, *, seedable: bool) -> list[int]:
    """Stop in the middle of the second epoch, load, skip what was seen: the samples of the whole
    epoch.
    """

    def start() -> tuple[Accelerator, Any]:
        forget()
        made = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable)
        )
        set_seed(0)
        return made, made.prepare(DataLoader(torch.arange(8), shuffle=True))

    accelerator, loader = start()
    first = [int(batch) for batch in loader]
    assert sorted(first) == list(range(8))
    batches = iter(loader)
    seen = [int(next(batches)) for _ in range(4)]
    accelerator.save_state(str(folder))
    accelerator, loader = start()
    accelerator.load_state(str(folder))
    return sorted(seen + [int(batch) for batch in skip_first_batches(loader, 4)])


@pytest.mark.parametrize("seedable", [False, True])
def test_an_epoch_that_is_resumed_in_its_middle_repeats_samples(
    seedable: bool, tmp_path: Path
) -> None:
    """``data/test_indexed.py`` has ours, where any start gives the rest."""
    samples = continued(tmp_path, seedable=seedable)
    assert len(samples) == 8 and len(set(samples)) < 8


# Checkpoints and models


def test_the_last_checkpoint_is_deleted_before_the_new_one_is_written(tmp_path: Path) -> None:
    """``test_saver.py`` and ``test_store.py`` have ours."""
    keep_one = ProjectConfiguration(
        project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=1
    )
    accelerator = Accelerator(cpu=True, project_config=keep_one)
    accelerator.prepare(nn.Linear(1, 1))
    accelerator.save_state()
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["model.safetensors"]

    def fill_disk(*_: object) -> None:
        raise OSError("no space left")

    accelerator.register_save_state_pre_hook(fill_disk)
    with pytest.raises(OSError, match="no space left"):
        accelerator.save_state()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_damaged_and_missing_files_load_as_if_nothing_were_wrong(tmp_path: Path) -> None:
    """``test_store.py`` has ours: damage is found and named."""
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 1))
    accelerator.save_state(str(tmp_path))
    weights, before = tmp_path / "model.safetensors", model.weight.clone()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 64
    weights.write_bytes(content)
    (tmp_path / "random_states_0.pkl").write_bytes(b"damaged")
    state = random.getstate()
    accelerator.load_state(str(tmp_path))
    assert not torch.equal(model.weight, before)
    (tmp_path / "random_states_0.pkl").unlink()
    accelerator.load_state(str(tmp_path))
    assert random.getstate() == state
