"""DeepSpeed JSONs: every mistake with its one line."""

from __future__ import annotations

import json

import pytest
from launch_texts import Write, Z, complaint

from trainer.launching.files.deepspeed_file import read_deepspeed_file

JSON_MISTAKES = [
    (
        f'{{{Z}, "gradient_cliping": 1.0}}',
        "gradient_cliping: 1.0: unknown key; did you mean 'gradient_clipping'?",
    ),
    (f'{{{Z}, "stage": 2}}', "stage: 2: unknown key; it belongs under zero_optimization"),
    (
        '{"zero_optimization": {"stage": 2, "reduce_buket_size": 1}}',
        "zero_optimization.reduce_buket_size: 1: unknown key; did you mean 'reduce_bucket_size'?",
    ),
    (
        '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memry": true}}}',
        "zero_optimization.offload_param.pin_memry: true: unknown key; did you mean 'pin_memory'?",
    ),
    (
        f'{{{Z}, "activation_checkpointing": {{"partition_activation": true}}}}',
        "activation_checkpointing.partition_activation: true: unknown key; did you mean 'partition_activations'?",
    ),
    (
        f'{{{Z}, "checkpoint": {{"parallel_write": {{"pipeline_stages": true}}}}}}',
        "checkpoint.parallel_write.pipeline_stages: true: unknown key; did you mean 'pipeline_stage'?",
    ),
    (
        f'{{{Z}, "timers": {{"throughput": {{"enabld": true}}}}}}',
        "timers.throughput.enabld: true: unknown key; did you mean 'enabled'?",
    ),
    (
        f'{{{Z}, "optimizer": {{"typ": "AdamW", "params": {{}}}}}}',
        "optimizer.typ: 'AdamW': unknown key; did you mean 'type'?",
    ),
    (
        f'{{{Z}, "optimizer": {{"params": {{}}}}}}',
        'optimizer: {\'params\': {}}: must be {"type": name, "params": {...}}',
    ),
    (
        f'{{{Z}, "optimizer": {{"type": "AdamW", "params": {{"lr": "1e-4"}}}}}}',
        "optimizer.params.lr: '1e-4': must be a number; remove the quotes",
    ),
    ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage: 4: must be 0, 1, 2 or 3"),
    (
        '{"zero_optimization": {"stage": false}}',
        "zero_optimization.stage: false: must be a whole number",
    ),
    (
        '{"zero_optimization": {"stge": 2}}',
        "zero_optimization.stge: 2: unknown key; did you mean 'stage'?",
    ),
    (
        '{"communication_data_type": "bf16"}',
        "communication_data_type: 'bf16': stage 0 runs as DDP, which exchanges gradients in fp32; remove it",
    ),
    (
        '{"zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "bf16"}}',
        "data_types.grad_accum_dtype: 'bf16': stage 0 runs as DDP, which adds gradients up in fp32; remove it",
    ),
    (
        '{"zero_optimization": {"stage": "3"}}',
        "zero_optimization.stage: '3': must be a whole number; remove the quotes",
    ),
    (
        '{"zero_optimization": true}',
        'zero_optimization: true: must be a mapping with the stage: {"stage": 0}, 1, 2 or 3',
    ),
    (f'{{{Z}, "train_batch_size": 0}}', "train_batch_size: 0: must be at least 1"),
    (
        f'{{{Z}, "train_micro_batch_size_per_gpu": 1.5}}',
        "train_micro_batch_size_per_gpu: 1.5: must be a whole number",
    ),
    (f'{{{Z}, "gradient_clipping": -1}}', "gradient_clipping: -1: must be at least 0"),
    (
        f'{{{Z}, "gradient_clipping": "1"}}',
        "gradient_clipping: '1': must be a number; remove the quotes",
    ),
    (f'{{{Z}, "wall_clock_breakdown": 1}}', "wall_clock_breakdown: 1: must be true or false"),
    (
        f'{{{Z}, "prescale_gradients": "true"}}',
        "prescale_gradients: 'true': must be true or false; remove the quotes",
    ),
    (f'{{{Z}, "aio": 3}}', "aio: 3: must be a mapping"),
    (f'{{{Z}, "checkpoint": 3}}', "checkpoint: 3: must be a mapping"),
    (
        '{"zero_optimization": {"stage": 2, "reduce_bucket_size": -5}}',
        "zero_optimization.reduce_bucket_size: -5: must be greater than 0",
    ),
    (
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}',
        "zero_optimization.offload_optimizer.device: 'gpu': must be one of 'none', 'cpu', 'nvme'; did you mean 'cpu'?",
    ),
    (
        '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
        "zero_optimization.offload_param.device: 'cpu': works in stage 3 only, this is stage 2; "
        "remove it or write stage 3",
    ),
    (
        '{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}}',
        "zero_optimization.offload_optimizer.device: 'nvme': "
        "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu",
    ),
    (
        f'{{{Z}, "fp16": {{"enabled": true}}, "bf16": {{"enabled": true}}}}',
        "bf16.enabled: true: disagrees with ds.json:1 (fp16.enabled); enable one of them",
    ),
    (f'{{{Z}, "fp16": {{"enabled": "yes"}}}}', "fp16.enabled: 'yes': must be true or false"),
    (f'{{{Z}, "fp16": true}}', "fp16: true: must be a mapping"),
    (
        f'{{{Z}, "fp16": {{"enabled": true, "loss_scale": -1}}}}',
        "fp16.loss_scale: -1: must be at least 0",
    ),
    (
        f'{{{Z}, "gradient_allreduce_op": "sum"}}',
        "gradient_allreduce_op: 'sum': the gradient here is the mean over the global batch; remove it",
    ),
    *[
        (
            f'{{{Z}, "{key}": {json.dumps(value)}}}',
            f"{key}: {value}: not supported by samecurve; remove it",
        )
        for key, value in {
            "elasticity": {"enabled": True},
            "autotuning": {"enabled": True},
            "tensor_parallel": {"autotp_size": 2},
            "pipeline": {"stages": 2},
            "sequence_parallel_size": 2,
            "torch_autocast": {"enabled": True},
        }.items()
    ],
    (
        f'{{{Z}, "log": {{}}}}',
        "log: {}: unknown key; DeepSpeed's JSON has none of this name; remove it",
    ),
    (
        f'{{{Z}, "comms_config": {{}}}}',
        "comms_config: {}: unknown key; DeepSpeed's JSON has none of this name; remove it",
    ),
    (
        f'{{{Z}, "bf16": {{"enabled": true, "loss_scale": 0}}, "fp16": {{"enabled": false, "loss_scale": 0}}}}',
        "bf16.loss_scale: 0: unknown key; bf16 needs no loss scale; remove it",
    ),
    (
        f'{{{Z}, "compile": {{"backend": "inductor"}}}}',
        "compile.backend: 'inductor': unknown key; DeepSpeed has none of this name; "
        "write compile: true in the training config, or dynamo_config in an accelerate YAML",
    ),
    *[
        (f"{{{Z}, {text}}}", f"{told}; remove it")
        for text, told in {
            '"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}': (
                "bf16.bf16_master_weights_and_grads: true: weights and gradients are kept in full precision here"
            ),
            '"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}': (
                "fp16.fp16_master_weights_and_grads: true: weights and gradients are kept in full precision here"
            ),
            '"managed_gradient_accumulation": false': (
                "managed_gradient_accumulation: false: gradients are accumulated by this program"
            ),
            '"dataloader_drop_last": true': "dataloader_drop_last: true: the training config says it, with drop_last",
            '"gradient_predivide_factor": 2.0': "gradient_predivide_factor: 2.0: DeepSpeed's ZeRO refuses it",
        }.items()
    ],
    (
        '{"zero_optimization": {"stage": 2, "compute_grad_norm": false}}',
        "zero_optimization.compute_grad_norm: false: the gradient norm is logged and clipped here; remove it",
    ),
    (
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}',
        "zero_optimization.offload_optimizer.ratio: 0.3: needs DeepSpeed's own Adam, and torch's steps here; remove it",
    ),
    (
        f'{{{Z}, "optimizer": {{"type": "Lamb", "params": {{"lr": 1e-3, "max_coeff": 0.3}}}}}}',
        "optimizer.type: 'Lamb': not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); looks at whole parameters, "
        "of which ZeRO gives each process parts: write AdamW, or remove this section and name a class of it as "
        "optimizer in the training config, which runs under DDP or in one process",
    ),
    (
        f'{{{Z}, "optimizer": {{"type": "Muon", "params": {{"lr": 1e-3}}}}}}',
        "optimizer.type: 'Muon': not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); steps whole matrices, "
        "of which ZeRO gives each process parts: write AdamW, or remove this section and set "
        "optimizer: torch.optim.Muon in the training config, which runs under DDP or in one process",
    ),
    (
        f'{{{Z}, "bf16": {{"enabled": true}}, "bfloat16": {{"enabled": false}}}}',
        "bfloat16: {'enabled': False}: is DeepSpeed's older name of bf16, which is there as well; remove it",
    ),
    (
        f'{{{Z}, "bfloat16": {{"bf16_optimizer_states": true}}}}',
        "bfloat16.bf16_optimizer_states: true: the optimizer's state is kept in full precision here; remove it",
    ),
    (f"{{{Z},}}", "not valid JSON: a trailing comma: remove it"),
    ("// from a blog\n{}", "not valid JSON: a comment, which JSON has not"),
    (
        f'{{{Z}, "gradient_accumulation_steps": 2.0}}',
        "gradient_accumulation_steps: 2.0: must be a whole number; write 2",
    ),
]


@pytest.mark.parametrize(("text", "line"), JSON_MISTAKES, ids=[line for _, line in JSON_MISTAKES])
def test_a_mistake_in_json_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_deepspeed_file(write("ds.json", text))) == f"ds.json:1: {line}"


def test_what_deepspeed_removed_is_told_in_its_words(write: Write) -> None:
    line = complaint(lambda: read_deepspeed_file(write("ds.json", f'{{{Z}, "nebula": {{}}}}')))
    assert line.startswith(
        "ds.json:1: nebula: {}: DeepSpeed: Nebula checkpointing has been removed"
    )


@pytest.mark.parametrize(
    ("key", "name"),
    [("mics_shard_size", "MiCS ZeRO-3 sharding"), ("zeropp_loco_param", "LoCo-Zero++")],
)
def test_what_deepspeed_removed_from_a_section_is_told_in_its_words(
    write: Write, key: str, name: str
) -> None:
    text = f'{{"zero_optimization": {{"stage": 3, "{key}": 8}}}}'
    line = complaint(lambda: read_deepspeed_file(write("ds.json", text)))
    assert line.startswith(
        f"ds.json:1: zero_optimization.{key}: 8: DeepSpeed: {name} has been removed"
    )
    disabled = {"enabled": False}
    off = json.dumps(
        {"zero_optimization": {"stage": 3, key: -1}, "elasticity": disabled, "amp": disabled}
    )
    assert read_deepspeed_file(write("off.json", off)).deepspeed == {
        "zero_optimization": {"stage": 3}
    }
