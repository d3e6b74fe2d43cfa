"""Accelerate files: what is read from their own keys."""

from __future__ import annotations

import json

import pytest
from accelerate.utils import TorchDynamoPlugin
from launch_texts import DDP, FSDP, Write, Z, complaint, flag
from origins import sourced

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


def test_single(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: 'NO'\n"))
    assert (request.strategy, str(request.strategy_origin)) == (
        "single",
        "a.yaml:1 (distributed_type)",
    )
    assert request.world_size == sourced(1, "a.yaml:1 (distributed_type)")
    assert request.notices == ()


def test_ddp_with_its_homes(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}mixed_precision: BF16\nuse_cpu: true\n"))
    assert request.strategy == "ddp"
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.mixed_precision == sourced("bf16", "a.yaml:3 (mixed_precision)")
    assert request.use_cpu
    assert request.files == ("a.yaml",)


def test_json_is_read_as_accelerate_does(write: Write) -> None:
    text = json.dumps(
        {"distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 2}, indent=1
    )
    request = read_accelerate_file(write("a.json", text))
    assert (request.world_size, request.num_machines) == (sourced(4, "a.json:3 (num_processes)"), 2)


def test_null_and_empty_sections_count_as_absent(write: Write) -> None:
    text = f"{DDP}mixed_precision: null\nmain_process_ip: null\nfsdp_config: {{}}\ndeepspeed_config:\ntpu_env: []\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.mixed_precision, request.notices) == (None, ())


def test_older_spelling_of_precision(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}fp16: true\n"))
    assert request.mixed_precision == sourced("fp16", "a.yaml:3 (fp16)")


def test_dynamo(write: Write) -> None:
    text = f"{DDP}dynamo_config:\n  dynamo_backend: INDUCTOR\n  mode: default\n  dynamo_use_dynamic: false\n"
    dynamo = read_accelerate_file(write("a.yaml", text)).dynamo
    assert dynamo == {"backend": "inductor", "mode": "default", "dynamic": False}
    assert TorchDynamoPlugin(**dynamo).backend.value == "INDUCTOR"
    assert (
        read_accelerate_file(
            write("b.yaml", f"{DDP}dynamo_config:\n  dynamo_backend: 'NO'\n")
        ).dynamo
        == {}
    )
    assert read_accelerate_file(write("c.yaml", f"{DDP}dynamo_backend: EAGER\n")).dynamo == {
        "backend": "eager"
    }


def test_section_of_another_strategy_is_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}fsdp_config:\n  fsdp_version: 2\n"))
    assert request.strategy == "ddp"
    assert request.notices == ("a.yaml:4: fsdp_config: no effect under MULTI_GPU",)


def test_parallelism_of_one_is_nothing(write: Write) -> None:
    text = f"{FSDP}parallelism_config:\n  parallelism_config_tp_size: 1\n"
    assert read_accelerate_file(write("a.yaml", text)).strategy == "fsdp"


def test_groups_that_hold_the_whole_model_each(write: Write) -> None:
    text = f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert request.fsdp["dp_replicate_size"] == 2
    assert str(request.origins["fsdp.dp_replicate_size"]).startswith("a.yaml:6")


def test_tensor_parallelism_is_read_beside_groups(write: Write) -> None:
    sizes = {"dp_replicate": 2, "dp_shard": 1, "tp": 2}
    text = f"{FSDP}parallelism_config:\n" + "".join(
        f"  parallelism_config_{k}_size: {n}\n" for k, n in sizes.items()
    )
    request = read_accelerate_file(
        write("a.yaml", text.replace("num_processes: 2", "num_processes: 4"))
    )
    assert (request.fsdp["dp_replicate_size"], request.fsdp["tp_size"]) == (2, 2)
    assert str(request.origins["fsdp.tp_size"]).startswith("a.yaml:8")


# Keys that cannot change what runs


@pytest.mark.parametrize(
    "lines",
    ["", "num_processes: null\nnum_machines: null\n", "num_processes: -1\n"],
    ids=["missing", "null", "accelerate's default"],
)
def test_the_launcher_says_how_many_processes(write: Write, lines: str) -> None:
    request = read_accelerate_file(write("a.yaml", f"distributed_type: MULTI_GPU\n{lines}"))
    assert (request.strategy, request.world_size, request.num_machines) == ("ddp", None, 1)
    two = read_accelerate_file("a.yaml", overrides=flag(2, "num_processes"))
    assert two.world_size == sourced(2, "command line (--num_processes)")


def test_one_process_of_ddp(write: Write) -> None:
    request = read_accelerate_file(
        write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\n")
    )
    assert (request.strategy, request.world_size) == ("ddp", sourced(1, "a.yaml:2 (num_processes)"))


def test_no_without_quotes_is_what_accelerate_takes_it_for(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: NO\nnum_processes: 1\n"))
    assert (request.strategy, request.notices) == ("single", ())
    assert complaint(
        lambda: read_accelerate_file(write("b.yaml", "distributed_type: NO\nnum_processes: 2\n"))
    ) == (
        "b.yaml:2: num_processes: 2: accelerate starts one process under b.yaml:1 (distributed_type); write 1, or ask "
        "for distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is no GPU"
    )


def test_keys_for_tpus_share_one_line(write: Write) -> None:
    text = f"{DDP}downcast_bf16: true\ntpu_name: pod\ntpu_use_cluster: false\ntpu_env: []\ncommand_file: null\n"
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:3: read on TPUs only: downcast_bf16, tpu_name",
    )
    for value in ("'no'", "no", "false", "null"):
        assert read_accelerate_file(write("b.yaml", f"{DDP}downcast_bf16: {value}\n")).notices == ()


def test_sections_that_are_switched_off_pass(write: Write) -> None:
    off = ', "autotuning": {"enabled": false}, "torch_autocast": {"enabled": false}, "sequence_parallel_size": 1'
    assert read_deepspeed_file(write("ds.json", f"{{{Z}{off}}}")).strategy == "zero2"


def test_text_that_looks_like_a_number_may_be_text(write: Write) -> None:
    wandb = {"enabled": True, "project": "7"}
    text = json.dumps({"zero_optimization": {"stage": 1}, "wandb": wandb})
    assert read_deepspeed_file(write("ds.json", text)).deepspeed["wandb"] == wandb
