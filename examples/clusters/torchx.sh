#!/bin/sh
# TorchX: its component dist.ddp is a torchrun on each machine, under the scheduler that is named.
#
#   SHAPE=1x2 examples/clusters/torchx.sh --output_dir runs/digits                               # on this machine
#   SHAPE=2x8 SCHEDULER=slurm examples/clusters/torchx.sh --output_dir /shared/runs/digits
#
# SHAPE       machines x processes on each (1x2)
# SCHEDULER   local_cwd, slurm, kubernetes, ... (local_cwd)
# STRATEGY    ddp, fsdp, zero1, zero2 or zero3 (fsdp)
# CONFIG      the training config (the digits)
set -eu
exec torchx run --scheduler "${SCHEDULER:-local_cwd}" dist.ddp -j "${SHAPE:-1x2}" --script examples/train.py -- \
    --accel_config "examples/clusters/accel_configs/${STRATEGY:-fsdp}.yaml" \
    --config "${CONFIG:-examples/configs/digits_cnn.yaml}" --resume auto "$@"
