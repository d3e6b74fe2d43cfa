#!/bin/sh
# torchrun on several machines: run this on each of them, with the same settings but for MACHINE.
#
#   MACHINE=0 FIRST=node1 examples/clusters/torchrun.sh --output_dir /shared/runs/digits
#   MACHINE=1 FIRST=node1 examples/clusters/torchrun.sh --output_dir /shared/runs/digits
#
# MACHINE     number of this machine, 0 for the first
# FIRST       name or address by which all machines reach the first
# MACHINES    how many there are (2)
# PROCESSES   on each of them: its GPUs (8)
# STRATEGY    ddp, fsdp, zero1, zero2 or zero3 (fsdp)
# CONFIG      the training config (the digits)
#
# Whatever stands behind it goes to the training. The output_dir lies on a disk that all machines share.
set -eu
exec torchrun --nnodes "${MACHINES:-2}" --nproc_per_node "${PROCESSES:-8}" --node_rank "$MACHINE" \
    --master_addr "$FIRST" --master_port "${PORT:-29500}" \
    examples/train.py --accel_config "examples/clusters/accel_configs/${STRATEGY:-fsdp}.yaml" \
    --config "${CONFIG:-examples/configs/digits_cnn.yaml}" --resume auto "$@"
