#!/bin/sh
# torchrun on several machines: run this on each of them, with the same settings.
#
#   FIRST=node1 examples/clusters/torchrun.sh --output_dir /shared/runs/digits
#
# FIRST       name or address by which all machines reach the one where they meet
# MACHINES    how many there are (2)
# PROCESSES   on each of them: its GPUs (8)
# STRATEGY    ddp, fsdp, zero1, zero2 or zero3 (fsdp)
# CONFIG      the training config (the digits)
#
# A machine that knows itself by another name than FIRST does not see that it is the one where all meet: say
# RDZV_CONF=is_host=1 there and is_host=0 on the others, and ADDRESS=the address of each.
set -eu
exec torchrun --nnodes "${MACHINES:-2}" --nproc_per_node "${PROCESSES:-8}" \
    --rdzv_backend c10d --rdzv_id samecurve --rdzv_endpoint "$FIRST:${PORT:-29400}" \
    ${RDZV_CONF:+--rdzv_conf "$RDZV_CONF"} ${ADDRESS:+--local_addr "$ADDRESS"} \
    examples/train.py --accel_config "examples/clusters/accel_configs/${STRATEGY:-fsdp}.yaml" \
    --config "${CONFIG:-examples/configs/digits_cnn.yaml}" --resume auto "$@"
