"""Put on PYTHONPATH: every Python then has FAKE_GPUS GPUs, those of ``trainer rehearse``.

The CUDA paths of the benchmarks and of tests/gpu run with it (``gpu_run.py --fake``), without values:
losses are 1, and the times are those of the host. CUDA_VISIBLE_DEVICES="" hides the GPUs from a
process. A rank has a GPU, whose collectives do nothing. Collectives of the host are real.
"""

from __future__ import annotations

import os

GPU, GIB = "fake GPU", 80


def install() -> None:
    """Give this process the fake GPU, to its end."""
    from trainer.rehearsal.device_guard import load_guard

    load_guard()
    import torch
    import torch.distributed as dist

    from trainer.rehearsal import fake_device as devices
    from trainer.rehearsal.alone import use_fakes
    from trainer.rehearsal.cuda import install_cuda
    from trainer.rehearsal.fake_parameters import install_parameters
    from trainer.rehearsal.ledger import Ledger

    devices._LARGE = 1 << 62  # every copy on the host is real
    device = devices.FakeDevice(Ledger("cuda"))
    install_cuda(device, GPU, GIB << 30)
    install_parameters()
    use_fakes()
    if "RANK" not in os.environ:
        torch.cuda.device_count = lambda: int(os.environ["FAKE_GPUS"])
    connect = dist.init_process_group
    dist.init_process_group = lambda backend=None, *args, **kwargs: connect(
        "cpu:gloo,cuda:fake", *args, **kwargs
    )
    device.__enter__()


if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
    install()
