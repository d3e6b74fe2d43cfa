"""Accelerate files and the flags of ``accelerate launch``: what is read, and what is refused."""

from __future__ import annotations

import json

import pytest
from accelerate.utils import TorchDynamoPlugin
from launch_texts import BY_FILE, DDP, FSDP, FULL, ZERO, Write, complaint, flag
from origins import sourced

from trainer.launching.files.accelerate_file import read_accelerate_file, read_launch_flags


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


@pytest.mark.parametrize(
    ("sizes", "value", "key"),
    [
        ({"cp": 2}, 2, "cp"),
        ({"sp": 4}, 4, "sp"),
        ({"cp": 2, "sp": 2}, 4, "cp"),
    ],
)
@pytest.mark.parametrize("text", [DDP, FSDP, f"{ZERO}  zero_stage: 3\n"])
def test_both_keys_of_accelerate_share_rows(
    text: str, sizes: dict[str, int], value: int, key: str, write: Write
) -> None:
    lines = [f"  parallelism_config_{name}_size: {size}\n" for name, size in sizes.items()]
    request = read_accelerate_file(write("a.yaml", f"{text}parallelism_config:\n{''.join(lines)}"))
    shared = request.settings.get("context_parallel")
    assert shared is not None and shared.value == value
    assert f"parallelism_config_{key}_size" in str(shared.origin)
    assert read_accelerate_file(write("b.yaml", text)).settings.get("context_parallel") is None


def test_sections_of_other_strategies_are_not_read(write: Write) -> None:
    text = f"{DDP}fp8_config:\n  backend: TE\nfsdp_config:\n  fsdp_version: 2\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, request.fsdp, request.notices) == ("ddp", {}, ())


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


def test_flags_are_read_by_accelerates_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "accelerate.commands.config.config_args.default_config_file"
    monkeypatch.setattr(home, "/nonexistent")
    words = "--config_file a.yaml --num-processes 4 --use_fsdp train.py --num_processes 9"
    path, flags = read_launch_flags(words.split())
    assert path == "a.yaml"
    assert flags == flag(4, "num_processes") | flag(True, "use_fsdp")
    assert read_launch_flags(["train.py"]) == (None, {})


def test_default_file_counts_where_it_exists(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    default = write("default_config.yaml", DDP)
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", default)
    assert read_launch_flags(["train.py"]) == (default, {})
    assert read_launch_flags(["--config_file", "a.yaml", "train.py"])[0] == "a.yaml"
    assert read_launch_flags(["--cpu", "train.py"]) == (None, flag(True, "cpu"))


def test_a_flag_wins_over_its_file(write: Write) -> None:
    path = write("a.yaml", f"{DDP}mixed_precision: bf16\nfsdp_config:\n  fsdp_version: 1\n")
    typed = flag(4, "num_processes") | flag("no", "mixed_precision")
    typed |= flag(True, "use_fsdp") | flag("2", "fsdp_version")
    request = read_accelerate_file(path, overrides=typed)
    assert (request.strategy, str(request.strategy_origin)) == ("fsdp", "command line (--use_fsdp)")
    assert request.world_size == sourced(4, "command line (--num_processes)")
    assert request.settings.get("mixed_precision") == sourced(
        "no", "command line (--mixed_precision)"
    )
    assert request.notices == ()


def test_launch_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    single = read_accelerate_file(None, overrides={})
    assert (single.strategy, single.files) == ("single", ())
    assert single.world_size == sourced(1, "command line (accelerate launch)")
    on_cpu = read_accelerate_file(None, overrides=flag(True, "cpu"))
    assert (on_cpu.strategy, on_cpu.use_cpu) == ("single", True)
    ddp = read_accelerate_file(None, overrides=flag(True, "multi_gpu") | flag(2, "num_processes"))
    assert (ddp.strategy, ddp.world_size) == ("ddp", sourced(2, "command line (--num_processes)"))


def test_launch_without_a_file_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Accelerate: several processes are DDP."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    every = read_accelerate_file(None, overrides={})
    assert (every.strategy, every.world_size) == ("ddp", None), "as many as the launcher started"


def test_a_mistake_in_flags_is_one_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    cpu = complaint(lambda: read_accelerate_file(write("a.yaml", DDP), overrides=flag(True, "cpu")))
    assert cpu == (
        "a.yaml:2: num_processes: 2: must be 1 under command line (--cpu); change one of the two"
    )
    two = complaint(lambda: read_accelerate_file(None, overrides=flag(2, "num_processes")))
    assert two == (
        "command line: --num_processes: 2: must be 1 under "
        "command line (accelerate launch); change one of the two"
    )


NO_TYPE = "must be 'NO', 'MULTI_GPU' (CPUs as well), 'FSDP' or 'DEEPSPEED'"
SIZES = "a.yaml:4: parallelism_config.parallelism_config_"
# One line for each rule: the text of the file, and the message.
MISTAKES = [
    (f"{DDP}mixed_precison: bf16", "a.yaml:3: mixed_precison: 'bf16': unknown key; did you mean"),
    (f"{FSDP}  fsdp_limit_all_gathers: true", "a.yaml:5: fsdp_config.fsdp_limit_all_gathers: true"),
    (f"{FSDP}  version: 2", "a.yaml:5: fsdp_config.version: 2: is given twice, also at a.yaml:4"),
    (f"{DDP}use_cpu: 'false'", "a.yaml:3: use_cpu: 'false': must be a valid boolean"),
    (
        "distributed_type: MULTI_GPU\nnum_processes: '2'",
        "a.yaml:2: num_processes: '2': must be -1 or",
    ),
    (
        "distributed_type: NO\nnum_processes: 2",
        "a.yaml:2: num_processes: 2: must be 1 under a.yaml:1 "
        "(distributed_type); change one of the two",
    ),
    ("distributed_type: MULTI_CPU", f"a.yaml:1: distributed_type: 'MULTI_CPU': {NO_TYPE}"),
    ("compute_environment: SAGEMAKER\ndistributed_type: 'NO'", "must be 'LOCAL_MACHINE'"),
    (
        f"{DDP}mixed_precision: no",
        "a.yaml:3: mixed_precision: false: must be 'no', 'bf16' or 'fp16'",
    ),
    (f"{DDP}parallelism_config:\n  parallelism_config_tp_size: 2", f"{SIZES}tp_size: 2: must be 1"),
    (f"{DDP}dynamo_backend: no", "a.yaml:3: dynamo_backend: false: must be a valid string"),
    (f"{DDP}dynamo_config:\n  dynamo_mode: fastest", "dynamo_mode: 'fastest': must be 'default', "),
    (
        f"{ZERO}  deepspeed_config_file: missing.json",
        "missing.json: the file ",
    ),
    (
        f"{BY_FILE}  zero_stage: 3",
        "a.yaml:5: deepspeed_config.zero_stage: 3: is given beside a.yaml:4 "
        "(deepspeed_config.deepspeed_config_file), which must say it; remove it here",
    ),
    (f"{DDP}fp16: true", "a.yaml:3: fp16: true: unknown key"),
    ("- 1\n", "a.yaml: the file must be a mapping"),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    write("ds.json", json.dumps({"zero_optimization": {"stage": 2}}))
    said = complaint(lambda: read_accelerate_file(write("a.yaml", text)))
    assert line in said and "\n" not in said


def test_all_wrong_values_at_once(write: Write) -> None:
    text = f"{DDP}use_cpu: 1\nnum_machines: 0\n"
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))).splitlines() == [
        "a.yaml:3: use_cpu: 1: must be a valid boolean",
        "a.yaml:4: num_machines: 0: must be greater than or equal to 1",
    ]


def test_a_flag_fills_the_precision_that_the_json_leaves_open(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    path = write("a.yaml", BY_FILE)
    request = read_accelerate_file(path, overrides=flag("bf16", "mixed_precision"))
    assert request.settings.get("mixed_precision") == sourced(
        "bf16", "command line (--mixed_precision)"
    )
    stage = "ds.json:1 (zero_optimization.stage)"
    assert (request.strategy, str(request.strategy_origin)) == ("zero2", stage)
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.files == ("a.yaml", "ds.json")
    write("ds.json", json.dumps({**FULL, "fp16": {"enabled": True}}))
    line = complaint(lambda: read_accelerate_file(path, overrides=flag("bf16", "mixed_precision")))
    assert line == (
        "command line: --mixed_precision: 'bf16': disagrees with 'fp16' at ds.json:1 "
        "(fp16.enabled); keep one of the two"
    )
    ddp = read_accelerate_file(write("b.yaml", DDP), overrides=flag(0.5, "gradient_clipping"))
    assert ddp.settings.get("max_grad_norm") == sourced(0.5, "command line (--gradient_clipping)")
