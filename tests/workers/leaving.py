"""Run on two ranks: rank 1 takes a second to close its groups, and reads the store behind that.

... leaving.py {slow,gone}
"""

from __future__ import annotations

import os
import sys
import time

import torch.distributed as dist

import trainer
from trainer.private.torch import default_store


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        return
    store, destroy = default_store(), dist.destroy_process_group

    def slowly() -> None:
        if sys.argv[1] == "gone":
            os._exit(9)
        time.sleep(1.0)
        destroy()
        store.set("a question", "")
        store.get("a question")  # an error if the process of the store is gone
        print("the store is there", flush=True)

    dist.destroy_process_group = slowly


trainer.run_and_exit(main)
