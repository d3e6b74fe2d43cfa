"""``trainer import SOURCE --to DIR``: write the weights of another program's checkpoint as
safetensors.

SOURCE is what Accelerate's save_state left under FSDP or DeepSpeed, or any folder of
torch.distributed.checkpoint. Pickles are read by torch's weights-only reader; one that holds more
than weights is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..checkpoint.export import MODEL_FILE
from ..errors import CheckpointError, TrainerError
from .export import write_new_model
from .external_checkpoint import open_external
from .usage import local_path


def run(argv: Sequence[str]) -> int:
    """Write the weights to a new folder, one tensor in memory at a time, and return 0.

    Raises:
        CheckpointError: the checkpoint cannot be read, or the new folder cannot be written.
    """
    parser = argparse.ArgumentParser(prog="trainer import", description=__doc__)
    parser.add_argument("source", type=local_path, help="the folder that the other program wrote")
    parser.add_argument("--to", type=local_path, required=True, help="the new folder of the model")
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        help="leave a tensor out: a second name of a shared one",
    )
    args = parser.parse_args(argv)

    try:
        source = open_external(args.source)
        names = [name for name in source.shapes if name not in args.drop]
        entries = [(name, *source.shapes[name]) for name in names]
        tensors = (source.read(name) for name in names)
        write_new_model(args.to, entries, tensors, extras={})
    except TrainerError:
        raise
    except Exception as error:  # a forged file may raise anything in its reader
        raise CheckpointError(
            f"{args.source}: no readable checkpoint: {type(error).__name__}: {error}"
        ) from error

    print(f"{args.to / MODEL_FILE}: {len(names)} tensors")
    return 0
