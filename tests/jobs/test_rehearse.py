"""What ``trainer rehearse`` says of a job is what the job's ranks hold and send.

| promised | strategies and worlds | tests |
|---|---|---|
| Every branch for a GPU runs on the fake GPU, and waits for the device only at the places of docs/gpu.md | FSDP2 and ZeRO-3 on 2 fakes; one process, DDP and ZeRO-2 (nightly) | test_a_step_on_the_fake_gpu_waits_where_the_page_says |
| A whole training runs on the fake GPU, with the branches that a rehearsal does not reach | one process | test_a_whole_training_runs_on_the_fake_gpu |
| Kernels refuse tensors of two dtypes; attention takes the kernel of a GPU; models with heads of two widths, or with buffers in their files, are rehearsed from config.json | one process | test_tensors_of_two_dtypes_are_refused_as_by_a_real_kernel, test_attention_takes_the_kernel_of_a_gpu, test_a_family_is_rehearsed_from_its_configuration |
| DPO on an adapter is rehearsed, parameters of which the engine gathers when they are read | ZeRO-3 on 2 (nightly) | test_dpo_on_an_adapter_is_rehearsed |
| The table, its JSON, a change that fits, ranks that differ, and the line of a task that cannot be rehearsed | one rank and all ranks of fakes; a change that fits, a task that raises (nightly) | test_the_command_finds_a_change_that_fits, test_ranks_that_take_different_branches_are_named, test_a_task_that_cannot_be_rehearsed_is_named_by_its_line, test_an_error_of_the_launch_file_names_the_file |
| A launch file on a single GPU runs its strategy, as `accelerate launch` does, and what is offloaded takes no memory of the GPU | FSDP2 on one fake; ZeRO-2 on 2 (nightly) | test_what_is_offloaded_takes_no_memory_of_the_gpu |
| Parameters, gradients and optimizer state within 1 % of a real run, activations within 10 %, collectives equal in kind, count and bytes | FSDP2 and ZeRO-3 on 2; one process, the others on 2, HSDP on 4 (nightly) | test_a_rehearsal_is_like_a_real_run |
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from architectures import save_architecture
from doc_pages import places_that_wait
from launchers import (
    ROOT,
    completed,
    json_in,
    launch_file,
    options,
    ranks,
    slow_but,
    start_ranks,
    worked,
)
from preferences import save_preferences
from tiny_language import language_settings

from trainer import LaunchError
from trainer.commands import cli
from trainer.commands.rehearse import first_difference
from trainer.config.documents import read_document
from trainer.rehearsal.collectives import Collective
from trainer.rehearsal.job import Job
from trainer.rehearsal.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS


@pytest.fixture(autouse=True)
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork each rank from a process that has imported the packages, which saves seconds."""

    def run(words: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        path, _ = start_ranks("fake")
        script = [ROOT / "tests/workers/rehearsed.py", *words[3:]]
        done = ranks(script, 0, environment=env, work_dir=Path.cwd(), starter=path)
        return subprocess.CompletedProcess(words, done.returncode, done.stdout + done.stderr)

    fake = SimpleNamespace(run=run, PIPE=None, STDOUT=None)
    monkeypatch.setattr("trainer.rehearsal.job.subprocess", fake)


WORLDS = {"single": 1, "ddp": 2, "fsdp": 2, "hsdp": 4, "zero1": 2, "zero2": 2, "zero3": 2}
SETTINGS = {
    "task": "observed:Llama",
    "max_steps": "5",
    "micro_batch_size": "2",
    "lr": "1e-3",
    "max_grad_norm": "1.0",
    "mixed_precision": "bf16",
}
CASES = {
    "plain": {},
    "accumulated": {"accumulation_steps": "2", "optimizer": "own_optimizers.Lion"},
    "recomputed": {"task_settings.recomputes": "true"},
    "frozen": {"task_settings.only_last": "true"},
    "four_bits": {
        "task": "trainer.language:CausalLM",
        "task_settings.adapter": "{r: 4, quantize: nf4}",
        "task_settings.attention": "sdpa",  # on a CPU no kernel attends without a mask
    },
    # Without groups of heads, for which a GPU has no kernel in float32 that keeps no scores.
    "float32": {"mixed_precision": "no", "task_settings.key_heads": "4"},
    # The iteration has the dtype of a GPU.
    "muon": {"optimizer": "muon", "optimizer_settings": "{dtype: bf16}"},
}


def job(file: Path, words: list[str], gpus: int) -> Job:
    """Return a rehearsal of a training under a launch file on H100s."""
    return Job(launch_file=dict(read_document(str(file)).data), words=words, gpus=gpus, gpu="H100")


def committed(strategy: str) -> Path:
    return ROOT / f"accel_configs/{strategy}.yaml"


def settings_of_language(folder: Path) -> dict[str, str]:
    """Settings of a language task, whose model and texts are made in a folder."""
    model = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
    settings = language_settings(folder, sequence_length=64, texts=300, **model)
    return {f"task_settings.{key}": str(value) for key, value in settings.items()}


def real_and_rehearsed(
    strategy: str, world: int, case: str, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    settings = {**SETTINGS, **CASES[case]}
    if "CausalLM" in settings["task"]:
        settings |= settings_of_language(folder)
    words, file = options(settings), committed(strategy)
    if world == 2:
        file = launch_file(folder / f"{strategy}.yaml", strategy)
    given = [f"--accel_config={file}"] if world > 1 else []
    own = [f"--output_dir={folder / 'run'}", "--sanity_evaluation=false", "--overwrite"]
    result = folder / "real.json"
    real = ["tests/workers/observed.py", result, *words, *given, *own]
    worked(real, world if world > 1 else 0)
    (rehearsed,) = job(file, words, world).rehearse()
    return json_in(result), rehearsed


def compared(real: dict[str, Any], rehearsed: dict[str, Any]) -> None:
    assert real["plan"]["strategy"] == rehearsed["plan"]["strategy"]
    held, predicted = (found["phases"]["step"]["at_most"] for found in (real, rehearsed))
    for kind in (PARAMETERS, GRADIENTS, OPTIMIZER):
        assert predicted.get(kind, 0) == pytest.approx(held.get(kind, 0), rel=0.01, abs=2000), kind
    ends = [found["phases"]["forward"]["at_end"][ACTIVATIONS] for found in (real, rehearsed)]
    assert ends[1] == pytest.approx(ends[0], rel=0.1)
    sent, expected = (
        [Collective(*made)[:4] for made in found["collectives"][found["first"] :]]
        for found in (real, rehearsed)
    )
    assert expected == sent


QUICK = {("fsdp", "recomputed"), ("zero3", "accumulated"), ("zero1", "muon")}


@pytest.mark.parametrize(("strategy", "case"), slow_but(QUICK, product(WORLDS, CASES)))
def test_a_rehearsal_is_like_a_real_run(strategy: str, case: str, tmp_path: Path) -> None:
    compared(*real_and_rehearsed(strategy, WORLDS[strategy], case, tmp_path))


@pytest.mark.slow
def test_dpo_on_an_adapter_is_rehearsed(tmp_path: Path) -> None:
    settings = {**SETTINGS, **settings_of_language(tmp_path), "task": "trainer.language:DPO"}
    settings["task_settings.data"] = str(save_preferences(tmp_path / "pairs.jsonl"))
    settings["task_settings.adapter"] = "{r: 4}"
    gathers = ROOT / "tests/workers/zero3_gathers.json"
    text = committed("zero3").read_text()
    file = tmp_path / "zero3.yaml"
    file.write_text(text.replace("zero_stage: 3", f"deepspeed_config_file: {gathers}"))
    (found,) = job(file, options(settings), 2).rehearse()
    assert found["plan"]["strategy"] == "zero3"


CAUSAL = {"task": "trainer.language:CausalLM"}
CASES_ON_GPU: dict[str, dict[str, str]] = {
    "words": {},
    "packed": {**CAUSAL},
    "mask": {
        **CAUSAL,
        "task_settings.attention": "sdpa",
    },
    "adapter": {
        **CAUSAL,
        "task_settings.adapter": "{r: 4, dora: true}",
    },
    "fp16": {"mixed_precision": "fp16"},
    "skip": {"optimizer": "sgd", "on_nan": "skip"},
    "tf32": {"mixed_precision": "no", "task": "gpu_cases:Pictures", "float32": "tf32"},
    "deterministic": {"mixed_precision": "no", "deterministic": "true"},
    "average": {"ema_decay": "0.9"},
    "muon": {"optimizer": "muon"},
    "experts": {
        "task": "observed:Llama",
        "task_settings.family": "mixtral",
        "task_settings.layers": "1",
    },
    "padded": {"task": "observed:Padded"},
    "alone": {
        **CAUSAL,
        "task_settings.packing": "none",
    },
    "unclipped": {"checks": "none", "max_grad_norm": "null"},
}
QUICK_ON_GPU = {("zero3", "packed"), ("fsdp", "padded"), ("fsdp", "muon")}


@pytest.mark.parametrize(
    ("strategy", "case"),
    slow_but(QUICK_ON_GPU, product(("single", "ddp", "fsdp", "zero2", "zero3"), CASES_ON_GPU)),
)
def test_a_step_on_the_fake_gpu_waits_where_the_page_says(
    strategy: str, case: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "task": "gpu_cases:Words", "log_every": "1000", **CASES_ON_GPU[case]}
    if "CausalLM" in settings["task"]:
        settings |= settings_of_language(tmp_path)
    world = 1 if strategy == "single" else 2
    results = list(job(committed(strategy), options(settings), world).rehearse(range(world)))
    assert first_difference(results, range(world)) == ""
    found = results[0]
    assert found["plan"]["device"] == "cuda" and found["plan"]["strategy"] == strategy

    listed = "\n".join(places_that_wait())
    # The task's own check is told to the user instead.
    places, own = (
        {
            f"{line.rpartition(':')[0]}: {name}"
            for _, line, name, is_guessed, _ in found["reads"]
            if is_guessed == is_own
        }
        for is_own in (False, True)
    )
    assert len(own) == (case == "padded")
    assert {place for place in places if place not in listed} == set()
    # The count finds the waits that there are.
    expected = {"checkpoint/snapshot.py: take"}
    expected |= {"runtime/utils.py: is_invalid_grad_norm"} if "zero" in strategy else set()
    expected |= (
        {"strategies/base.py: finish_step"} if (strategy, case) == ("fsdp", "fp16") else set()
    )
    assert places >= expected
    if case == "packed":  # documents without a mask: nobody looks for them on the device
        assert not any("masking_utils" in place for place in places)


def test_a_whole_training_runs_on_the_fake_gpu(tmp_path: Path) -> None:
    """With an evaluation, a profile, checkpoints and a resume, which no rehearsal has."""
    done = ranks(["tests/workers/fake_gpu.py", tmp_path], 0, starter=start_ranks("fake")[0])
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json_in(tmp_path / "run/summary.json")
    assert summary["steps"] == 4 and "mfu" in summary and len(summary["attempts"]) == 2
    assert summary["machine"]["gpus"] == {"H100": 1}
    found = json_in(tmp_path / "found.json")
    assert found["restored"] == 1, "the resumed run sets the GPU's random numbers"
    assert found["autocast"] == ["torch.bfloat16", True]
    assert {"reporting/meter.py: paused", "checkpoint/snapshot.py: take"} <= {*found["waits"]}


KERNELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attend

def kernel(dtype, width, value_width, mask=None):
    query, value = (
        torch.empty(1, 2, 8, size, dtype=dtype, device="cuda") for size in (width, value_width)
    )
    assert attend(query, query, value, mask).shape[-1] == value_width
    return torch._fused_sdp_choice(query, query, value, mask)

narrow, wide = torch.bfloat16, torch.float32
mask = torch.ones(8, 8, dtype=torch.bool, device="cuda")
print(kernel(narrow, 16, 16), kernel(narrow, 16, 8), kernel(narrow, 16, 16, mask))
print(kernel(wide, 12, 12), kernel(wide, 6, 6))
query, key = (torch.empty(1, heads, 8, 16, dtype=narrow, device="cuda") for heads in (4, 1))
print(torch._fused_sdp_choice(query, key, key), torch._fused_sdp_choice(query, key, key, enable_gqa=True))
"""


DTYPES = """
import torch
import torch.nn.functional as F

CALLS = {
    "linear": lambda a, b: F.linear(a(4, 8), b(8, 8)),
    "linear with bias": lambda a, b: F.linear(a(4, 8), b(8, 8), b(8)),
    "mm": lambda a, b: a(4, 8) @ b(8, 4),
    "bmm": lambda a, b: a(2, 4, 8) @ b(2, 8, 4),
    "mv": lambda a, b: a(4, 8) @ b(8),
    "conv": lambda a, b: F.conv2d(a(1, 3, 8, 8), b(4, 3, 3, 3)),
    "transposed": lambda a, b: F.conv_transpose2d(a(1, 3, 8, 8), b(3, 4, 3, 3)),
    "bias": lambda a, b: F.conv1d(a(1, 3, 8), a(4, 3, 3), b(4)),
    "index_add": lambda a, b: a(4).index_add(0, torch.tensor([0], device=a(1).device), b(1)),
    "index_copy": lambda a, b: a(4).index_copy(0, torch.tensor([0], device=a(1).device), b(1)),
    "index_put": lambda a, b: a(4).index_put((torch.tensor([0], device=a(1).device),), b(1)),
    "grid": lambda a, b: F.grid_sample(a(1, 3, 8, 8), b(1, 4, 4, 2), align_corners=False),
    "add": lambda a, b: a(4) + b(4),
    "mse": lambda a, b: F.mse_loss(a(4), b(4)),
    "scatter_add": lambda a, b: a(4).scatter_add(0, torch.tensor([0], device=a(1).device), b(1)),
    "where": lambda a, b: torch.where(a(4) > 0, a(4), b(4)),
    "filled": lambda a, b: a(4).masked_fill(a(4) > 0, torch.finfo(a(1).dtype).max * 1.5),
    "overfilled": lambda a, b: a(4).fill_(1e39),
}

def refuses(call, device, *dtypes):
    makers = [lambda *shape, d=d: torch.ones(shape, dtype=d, device=device) for d in dtypes]
    try:
        call(*makers)
        return False
    except RuntimeError:
        return True

for name, call in CALLS.items():
    for pair in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), [torch.float32] * 2):
        assert refuses(call, "cuda", *pair) == refuses(call, "cpu", *pair), (name, pair)
"""


@cache
def on_fake_gpu() -> subprocess.CompletedProcess[str]:
    """Run both texts in one process with the fake GPU."""
    fake = {"PYTHONPATH": f"{ROOT}/benchmarks/fake_gpu", "CUDA_VISIBLE_DEVICES": "0"}
    words = [sys.executable, "-c", KERNELS + DTYPES]
    return completed(words, environment={**fake, "FAKE_GPUS": "1"})


def test_attention_takes_the_kernel_of_a_gpu() -> None:
    """1 is flash attention, 2 the memory-efficient kernel, 0 plain products of matrices."""
    done = on_fake_gpu()
    assert done.stdout.split() == ["1", "2", "2", "2", "0", "0", "1"], done.stderr


def test_tensors_of_two_dtypes_are_refused_as_by_a_real_kernel() -> None:
    done = on_fake_gpu()
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek_v3", "apertus"])
def test_a_family_is_rehearsed_from_its_configuration(family: str, tmp_path: Path) -> None:
    folder = save_architecture(tmp_path / family, family)
    held = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    for file in folder.glob("*.safetensors"):
        file.unlink()
    settings = {**settings_of_language(tmp_path), "task_settings.model": str(folder)}
    settings |= {"micro_batch_size": "2", "lr": "1e-3", "task": "trainer.language:CausalLM"}
    (found,) = job(committed("single"), options(settings), 1).rehearse()
    parameters = found["phases"]["built"]["at_most"][PARAMETERS]
    assert parameters == pytest.approx(held, rel=0.05)  # the file has a head


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in a folder of its own, with this test's tasks, and return its exit code and
    what it printed.
    """
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        code = cli.main(["rehearse", *map(str, words)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow  # it rehearses each change until one fits
def test_the_command_finds_a_change_that_fits(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    config, report = Path("train.yaml"), Path("report.json")
    # Two steps are rehearsed, and a save only if the training saves.
    settings = {**SETTINGS, "max_steps": "1", "compile": "true", "keep_last": "0"}
    config.write_text("\n".join(f"{key}: {value}" for key, value in settings.items()))
    words = [committed("ddp"), config, "--gpus", 4, "--gpu", "1.119GiB", "--to", report]
    code, out, err = command(*words)
    assert code == 1, out + err
    assert all(len(line) <= 80 for line in out.splitlines()), out
    assert "all-reduce float32" in out and "nothing is compiled" in out
    assert "DOES NOT FIT" in out
    told = json_in(report)
    assert told["change"] == "accel_configs/fsdp.yaml", out
    assert told["phases"]["step"]["at_most"][OPTIMIZER] >= 8 * told["plan"]["trainable_parameters"]
    assert "save" not in told["phases"]


@pytest.mark.parametrize(
    ("file", "section", "offload"),
    [
        ("accel_configs/fsdp.yaml", "fsdp_config", {"fsdp_offload_params": True}),
        pytest.param(
            "ds_configs/zero2.json",
            "zero_optimization",
            {"offload_optimizer": {"device": "cpu"}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_offloaded_takes_no_memory_of_the_gpu(
    file: str, section: str, offload: dict[str, Any]
) -> None:
    gpus = 1 if section == "fsdp_config" else 2
    held_job = job(ROOT / file, options(SETTINGS), gpus)
    (held,) = held_job.rehearse()
    assert held["plan"]["strategy"] == Path(file).stem
    assert held["plan"]["world_size"] == gpus
    data = held_job.launch_file
    changed = held_job._replace(launch_file={**data, section: {**data[section], **offload}})
    (offloaded,) = changed.rehearse()
    optimizer, gone = (
        found["phases"]["step"]["at_most"].get(OPTIMIZER, 0) for found in (held, offloaded)
    )
    assert gone < 0.01 * optimizer
    assert not any(is_guessed for *_, is_guessed, _ in offloaded["reads"])


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("ids", r"workers/observed.py:\d+: aten.nonzero.default depends on values of the device"),
        pytest.param(
            "other",
            r"rank 0 .*\(rehearsal.log\): workers/observed.py:\d+: KeyError: 'other'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_task_that_cannot_be_rehearsed_is_named_by_its_line(
    key: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = options({**SETTINGS, "task": "observed:Unrehearsable", "task_settings.key": key})
    with pytest.raises(LaunchError, match=told):
        list(job(committed("fsdp"), words, 2).rehearse())


def test_an_error_of_the_launch_file_names_the_file() -> None:
    with pytest.raises(
        LaunchError, match=r"^hsdp.yaml: num_processes: 6: must be 4 under hsdp.yaml "
    ):
        list(job(committed("hsdp"), options(SETTINGS), 6)._replace(file="hsdp.yaml").rehearse())


def test_ranks_that_take_different_branches_are_named(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    words = ["--ranks", "all", *options({**SETTINGS, "task": "observed:Uneven"})]
    code, out, err = command(committed("ddp"), "--gpus", 2, *words)
    assert code == 1, out + err
    assert re.search(
        r"RANKS DIFFER at collective \d+.*\n  rank 0 has .*\n"
        r"  rank 1 has all-reduce of 256 B over 2 ranks at workers/observed.py:\d+",
        out,
    ), out
