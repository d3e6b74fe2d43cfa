r"""``trainer train --config FILE``: train the task that a config names. No script is needed.

Under a launcher::

    accelerate launch --config_file accel_configs/ddp.yaml -m trainer train --config train.yaml
    torchrun --nproc_per_node 2 -m trainer train \
        --accel_config accel_configs/fsdp.yaml --config train.yaml
    deepspeed --num_gpus 2 --module trainer train \
        --deepspeed ds_configs/zero3.json --config train.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ..script import main


def run(argv: Sequence[str]) -> NoReturn:
    """Train, and end the process with the exit code of the training."""
    main(argv)
