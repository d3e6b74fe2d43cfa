r"""The one script: the training config says what is trained, the launch files say how it runs.

    accelerate launch --config_file accel_configs/ddp.yaml examples/train.py \
        --config examples/configs/digits_cnn.yaml
    accelerate launch --config_file accel_configs/zero3.yaml examples/train.py \
        --config examples/configs/llama_stdlib.yaml --lr 3e-4
    torchrun --nproc_per_node 2 examples/train.py --accel_config accel_configs/fsdp.yaml \
        --config examples/configs/digits_cnn.yaml
    deepspeed --num_gpus 2 examples/train.py --deepspeed ds_configs/zero3.json \
        --config examples/configs/llama_stdlib.yaml
    python examples/train.py --config examples/configs/digits_cnn.yaml

Every key of the config can be set behind it as ``--key value``; ``--help`` lists them.
"""

import trainer

if __name__ == "__main__":
    trainer.main()
