#!/bin/sh
# The deepspeed launcher on several machines: run this once; it starts the others over pdsh and ssh, without passwords.
#
#   FIRST=node1 examples/clusters/deepspeed.sh --output_dir /shared/runs/digits
#
# FIRST       name or address by which all machines reach the first of the list
# HOSTFILE    the list of machines (examples/clusters/hostfile)
# STRATEGY    zero1, zero2 or zero3: files of ds_configs (zero2)
# CONFIG      the training config (the digits)
#
# The machines see of this shell's environment only what begins with PYTHON, NCCL and the like; other variables go into
# a file .deepspeed_env here or at home, a line each: GLOO_SOCKET_IFNAME=eth0. Ports and keys of ssh stand in ~/.ssh/config.
set -eu
exec deepspeed --hostfile "${HOSTFILE:-examples/clusters/hostfile}" --launcher pdsh --master_addr "$FIRST" \
    examples/train.py --deepspeed "ds_configs/${STRATEGY:-zero2}.json" \
    --config "${CONFIG:-examples/configs/digits_cnn.yaml}" --resume auto "$@"
