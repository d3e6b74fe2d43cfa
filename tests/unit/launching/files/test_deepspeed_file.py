"""DeepSpeed JSONs, inline or in a file of their own: what is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import DeepSpeedPlugin
from launch_texts import BY_FILE, DDP, FULL, ZERO, Write, Z, complaint
from origins import sourced

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import INLINE, read_deepspeed_file


def test_inline_zero(write: Write) -> None:
    text = (
        f"{ZERO}  zero_stage: 3\n  gradient_accumulation_steps: auto\n  gradient_clipping: 1\n"
        "  offload_optimizer_device: cpu\n  offload_param_device: none\n  zero3_save_16bit_model: true\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, str(request.strategy_origin)) == (
        "zero3",
        "a.yaml:4 (deepspeed_config.zero_stage)",
    )
    assert request.accumulation_steps is None
    assert request.max_grad_norm == sourced(1.0, "a.yaml:6 (deepspeed_config.gradient_clipping)")
    assert request.deepspeed == {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    }


def test_deepspeed_json(write: Write) -> None:
    request = read_deepspeed_file(write("ds.json", json.dumps(FULL, indent=1)))
    assert request.strategy == "zero2"
    assert (request.world_size, request.mixed_precision) == (None, None)
    assert (request.micro_batch_size, request.max_grad_norm) == (None, None)
    assert request.global_batch_size is not None
    assert request.global_batch_size.value == 64
    assert request.accumulation_steps is not None
    assert request.accumulation_steps.value == 2
    assert request.optimizer is not None
    assert (request.optimizer.name, request.optimizer.typed.value) == ("adamw", "AdamW")
    assert {key: given.value for key, given in request.optimizer.values.items()} == {
        "betas": [0.9, 0.95]
    }
    assert {key: given.value for key, given in request.optimizer.defaults.items()} == {
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    assert request.scheduler is not None
    assert (request.scheduler.name, request.scheduler.values) == ("constant", {})
    assert {key: given.value for key, given in request.scheduler.defaults.items()} == {
        "warmup_type": "log"
    }
    assert request.deepspeed == {
        "zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8},
        "fp16": {"loss_scale": 0, "min_loss_scale": 1},
    }


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({"bf16": {"enabled": "auto"}}, None),
        ({"bfloat16": {"enabled": True}}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16"),
        ({"fp16": {"enabled": False}}, "no"),
    ],
)
def test_precision_of_the_json(
    write: Write, sections: dict[str, Any], precision: str | None
) -> None:
    text = json.dumps({"zero_optimization": {"stage": 1}, **sections})
    request = read_deepspeed_file(write("ds.json", text))
    assert (request.mixed_precision and request.mixed_precision.value) == precision
    assert request.deepspeed == {"zero_optimization": {"stage": 1}}


ABSENT = "ds.json: no zero_optimization.stage, which DeepSpeed takes as 0;"


@pytest.mark.parametrize(
    ("sections", "notice", "unused"),
    [
        ({"prescale_gradients": True}, ABSENT, "prescale_gradients"),
        ({"zero_optimization": {"overlap_comm": True}}, ABSENT, "overlap_comm"),
        (
            {
                "zero_optimization": {
                    "stage": 0,
                    "cpu_offload": True,
                    "reduce_bucket_size": "auto",
                },
                "fp16": {"enabled": True, "loss_scale": 128},
                "tensorboard": {"enabled": True},
                "csv_monitor": {"enabled": False},
                "communication_data_type": "fp32",
                "prescale_gradients": False,
            },
            "ds.json:1: zero_optimization.stage:",
            "offload_optimizer, tensorboard, loss_scale",
        ),
    ],
)
def test_stage_0_is_ddp(write: Write, sections: dict[str, Any], notice: str, unused: str) -> None:
    """What counts under DDP as well is read as in every JSON, and what DeepSpeed's engine alone
    reads is said.
    """
    shared = {key: value for key, value in FULL.items() if key != "zero_optimization"}
    request = read_deepspeed_file(write("ds.json", json.dumps(shared | sections)))
    assert (request.strategy, request.stage_0, request.deepspeed) == ("ddp", True, {})
    assert request.global_batch_size is not None
    assert request.global_batch_size.value == 64
    assert request.optimizer is not None
    assert request.optimizer.name == "adamw"
    assert request.notices == (
        f"{notice} DeepSpeed shards nothing in stage 0: runs as DDP",
        f"ds.json:1: no effect in stage 0, which runs as DDP: {unused}",
    )


def test_stage_0_in_an_accelerate_file(write: Write) -> None:
    text = f"{ZERO}  zero_stage: 0\n  gradient_clipping: 1\n  offload_param_device: cpu\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, request.stage_0, request.deepspeed) == ("ddp", True, {})
    assert request.max_grad_norm == sourced(1.0, "a.yaml:5 (deepspeed_config.gradient_clipping)")
    assert request.notices == (
        "a.yaml:4: deepspeed_config.zero_stage: DeepSpeed shards nothing in stage 0: runs as DDP",
        "a.yaml:6: no effect in stage 0, which runs as DDP: offload_param_device",
    )


def test_json_named_in_the_yaml(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    request = read_accelerate_file(write("a.yaml", f"{BY_FILE}  zero3_init_flag: false\n"))
    assert (request.strategy, str(request.strategy_origin)) == (
        "zero2",
        "ds.json:1 (zero_optimization.stage)",
    )
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.files == ("a.yaml", "ds.json")


def test_both_ways_beside_each_other_is_what_accelerate_refuses() -> None:
    """What stands for a key of the JSON is just what Accelerate's own check names."""
    constants = DeepSpeedPlugin._deepspeed_config_checks.__code__.co_consts
    names = {
        n
        for c in constants
        for n in (c if isinstance(c, tuple) else (c,))
        if str(n).startswith("ACCELERATE_")
    }
    refused = {name.replace("ACCELERATE_", "").replace("DEEPSPEED_", "").lower() for name in names}
    assert refused - {"config_ds_fields"} == {"mixed_precision", *INLINE}


def test_a_deepspeed_section_needs_deepspeed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    install = "DeepSpeed is not installed: pip install 'samecurve[deepspeed]'"
    assert complaint(lambda: read_deepspeed_file(write("ds.json", json.dumps(FULL)))) == (
        f"ds.json: {install}"
    )
    assert (
        complaint(lambda: read_accelerate_file(write("a.yaml", BY_FILE))) == f"ds.json: {install}"
    )
    inline = complaint(lambda: read_accelerate_file(write("b.yaml", f"{ZERO}  zero_stage: 2\n")))
    assert inline == f"b.yaml:1: distributed_type: 'DEEPSPEED': {install}"
    assert read_accelerate_file(write("c.yaml", DDP)).strategy == "ddp"


def test_deepspeed_is_not_imported_to_read_a_file(tmp_path: Path) -> None:
    """Its import takes half a second, and chooses a device before ``use_cpu`` is known."""
    (tmp_path / "ds.json").write_text(json.dumps(FULL))
    code = (
        "import sys; from trainer.launching.files.deepspeed_file import read_deepspeed_file as r; "
        "r('ds.json'); sys.exit('deepspeed' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_older_names_of_offloads(write: Write) -> None:
    names = ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")
    text = json.dumps({"zero_optimization": {"stage": 3, **dict.fromkeys(names, True)}}, indent=1)
    request = read_deepspeed_file(write("ds.json", text))
    moved = {"device": "cpu", "pin_memory": True}
    assert request.deepspeed == {
        "zero_optimization": {"stage": 3, "offload_optimizer": moved, "offload_param": moved}
    }
    home = request.origins["deepspeed.zero_optimization.offload_param.device"]
    assert str(home) == "ds.json:5 (zero_optimization.cpu_offload_param)"


INLINE_MISTAKES = [
    (f"{ZERO}  zero_stage: 4", "a.yaml:4: deepspeed_config.zero_stage: 4: must be 0, 1, 2 or 3"),
    (
        f"{ZERO}  gradient_clipping: 1.0",
        "a.yaml:1: deepspeed_config.zero_stage: is missing, which accelerate takes as 2; "
        "write zero_stage: 1, 2 or 3",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  offload_param_device: cpu",
        "a.yaml:5: deepspeed_config.offload_param_device: 'cpu': "
        "works in stage 3 only, this is stage 2; remove it or write stage 3",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  offload_optimizer_device: nvme\n"
        "  offload_optimizer_nvme_path: /nvme",
        "a.yaml:5: deepspeed_config.offload_optimizer_device: 'nvme': "
        "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  offload_param_device: nvme",
        "a.yaml:5: deepspeed_config.offload_param_device: 'nvme': "
        "nvme needs a path: write nvme_path",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  deepspeed_moe_layer_cls_names: Block",
        "a.yaml:5: deepspeed_config.deepspeed_moe_layer_cls_names: 'Block': not supported by "
        "samecurve; use zero_optimization.leaf_module in a deepspeed_config_file",
    ),
]


@pytest.mark.parametrize(
    ("text", "line"), INLINE_MISTAKES, ids=[line for _, line in INLINE_MISTAKES]
)
def test_a_mistake_in_the_section_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))) == line


JSON_MISTAKES = [
    (
        '{"zero_optimization": true}',
        'zero_optimization: true: must be a mapping with the stage: {"stage": 0}, 1, 2 or 3',
    ),
    (
        '{"zero_optimization": {"stage": "3"}}',
        "zero_optimization.stage: '3': must be a whole number; remove the quotes",
    ),
    (
        '{"communication_data_type": "bf16"}',
        "communication_data_type: 'bf16': stage 0 runs as DDP, which exchanges gradients in fp32; "
        "remove it",
    ),
    (
        f'{{{Z}, "fp16": {{"enabled": true}}, "bf16": {{"enabled": true}}}}',
        "bf16.enabled: true: disagrees with ds.json:1 (fp16.enabled); enable one of them",
    ),
    (
        f'{{{Z}, "bf16": {{"enabled": true}}, "bfloat16": {{"enabled": false}}}}',
        "bfloat16: {'enabled': False}: is DeepSpeed's older name of bf16, which is there as well; "
        "remove it",
    ),
    (f"{{{Z},}}", "not valid JSON: a trailing comma: remove it"),
]


@pytest.mark.parametrize(("text", "line"), JSON_MISTAKES, ids=[line for _, line in JSON_MISTAKES])
def test_a_mistake_in_json_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_deepspeed_file(write("ds.json", text))) == f"ds.json:1: {line}"
