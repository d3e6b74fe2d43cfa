"""``trainer merge ADAPTER --to DIR``: add an adapter to the weights of its model, as a model of its
own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ..checkpoint.disk import delete, part_of, publish
from .usage import local_path, usage_error


def run(argv: Sequence[str]) -> int:
    """Write the merged model with its tokenizer to a new folder, and return 0.

    Raises:
        ConfigError: there is no adapter, its model is missing, or the new folder exists.
    """
    parser = argparse.ArgumentParser(prog="trainer merge", description=__doc__)
    parser.add_argument(
        "adapter", type=local_path, help="the folder of an exported adapter, such as RUN/model"
    )
    parser.add_argument("--to", type=local_path, required=True, help="the new folder of the model")
    parser.add_argument("--base", help="the model of the adapter, where it is not where it was")
    args = parser.parse_args(argv)

    if not (args.adapter / "adapter_config.json").is_file():
        raise usage_error("adapter", str(args.adapter), "holds no adapter_config.json")
    if os.path.lexists(args.to):
        raise usage_error("to", str(args.to), "exists already; give a new folder")

    from ..language.adapters import load_adapted
    from ..language.tokens import load_tokenizer

    # Written under another name and renamed at the end: a folder that exists is complete.
    part = part_of(args.to)
    delete(part)
    merged = load_adapted(str(args.adapter), args.base).merge_and_unload()
    merged.save_pretrained(part)
    load_tokenizer(str(args.adapter), "adapter").save_pretrained(part)
    publish(args.to)

    print(args.to)
    return 0
