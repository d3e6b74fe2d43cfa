"""Write the accelerate YAML of ``trainer plan --write``; ``launching/files/`` reads it back."""

from __future__ import annotations

_DISTRIBUTED_TYPES = {"single": "'NO'", "ddp": "MULTI_GPU", "fsdp": "FSDP"}
_FSDP = [
    "fsdp_config:",
    "  fsdp_version: 2",
    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
    "  fsdp_reshard_after_forward: true",
    "  fsdp_cpu_ram_efficient_loading: false",
    "  fsdp_state_dict_type: SHARDED_STATE_DICT",
]


def accelerate_yaml(
    strategy: str, *, world_size: int, num_machines: int, mixed_precision: str, offload: str
) -> str:
    """Return the text of the file.

    Args:
        strategy: one that the planner offers.
        world_size: processes in all.
        num_machines: on which they run.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        offload: ``none``, ``optimizer`` or ``all``, as in ``costs.Case``.
    """
    offloaded = "" if offload == "none" else f", {offload} offloaded"
    lines = [
        f"# {strategy}{offloaded}: written by trainer plan",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {_DISTRIBUTED_TYPES.get(strategy, 'DEEPSPEED')}",
    ]

    if strategy == "fsdp":
        lines += _FSDP
        if offload == "all":
            lines.append("  fsdp_offload_params: true")
    elif strategy.startswith("zero"):
        lines += [
            "deepspeed_config:",
            f"  zero_stage: {strategy[-1]}",
            "  deepspeed_multinode_launcher: standard",
        ]
        if offload != "none":
            lines.append("  offload_optimizer_device: cpu")
        if offload == "all":
            lines.append("  offload_param_device: cpu")

    lines += [
        f"mixed_precision: '{mixed_precision}'",
        f"num_machines: {num_machines}",
        f"num_processes: {world_size}",
        "use_cpu: false",
    ]
    return "\n".join(lines) + "\n"
