"""Host memory of each process while a large pretrained model is loaded: beside its own shards.

    python benchmarks/loading.py make FOLDER
    torchrun --nproc_per_node 2 benchmarks/loading.py FOLDER accel_configs/fsdp.yaml
    torchrun --nproc_per_node 2 benchmarks/loading.py FOLDER accel_configs/zero3.yaml
    torchrun --nproc_per_node 4 benchmarks/loading.py FOLDER accel_configs/hsdp.yaml

The first makes a Llama of 592 million random weights in bf16 files (1.1 GiB); it learns in float32.
The others load it as ``task: trainer.language:CausalLM`` does, on CPUs over gloo, where the shards
lie in host memory too. (For four processes take ``num_processes`` out of the files.) Prints MiB, of
the rank with the most: its shards of the parameters, the anonymous memory that stays when the
training is ready to start, the peak of it until then, and the largest tensor in float32.

measured (2026-11-23, two x86 CPU cores that other jobs shared, OMP_NUM_THREADS=1, torch 2.13,
deepspeed 0.19.8):

                                   shards   stays    peak   largest tensor 96
    FSDP2, 2 processes              1,128   1,149   1,149
    FSDP2, 4 processes                564     586     586
    HSDP, 2 groups of 2             1,128   1,150   1,150
    ZeRO-3, 2 processes             1,128   4,603   4,603
    ZeRO-3, 4 processes               564   2,338   2,338
ZeRO-3 keeps three times the shards from its start: the parameters as they are computed with, the
optimizer's own, and the gradients. DeepSpeed makes them in pieces, of which glibc keeps one shard
more.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

import trainer
from trainer import TrainConfig, build
from trainer.language import CausalLM
from trainer.launching import launch

SIZES = {
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 20,
    "num_attention_heads": 12,
}
WORDS, MIB = 16_384, 1 << 20


def make(folder: Path) -> None:
    """Write the model, a tokenizer of as many words, and a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(vocab_size=WORDS, tie_word_embeddings=True, **SIZES)
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="500MB")
    tokenizer = Tokenizer(
        models.WordLevel({str(word): word for word in range(WORDS)}, unk_token="0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1").save_pretrained(folder)
    (folder / "text.txt").write_text(" ".join(str(word) for word in range(2, 4096)))


def anonymous() -> int:
    """Return the anonymous memory of this process in bytes: without mapped files."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


class Sampler(threading.Thread):
    """The most anonymous memory since it was started, looked at every two milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.002):
            self.most = max(self.most, anonymous())


def measure(folder: str, accel_config: str) -> None:
    import transformers.models.llama.modeling_llama  # noqa: F401  (packages are not what is measured)

    text = str(Path(folder) / "text.txt")
    task = CausalLM(
        model=folder, data=text, sequence_length=64, cache_dir=f"{folder}/cache", loss="plain"
    )
    config = TrainConfig(
        task="trainer.language:CausalLM", max_steps=1, micro_batch_size=1, keep_last=0, overwrite=True,
        output_dir=f"{folder}/run",
    )  # fmt: skip
    launched = launch(config, accel_config=accel_config)
    task.build_data()
    gc.collect()
    sampler, before = Sampler(), anonymous()
    sampler.start()
    state = build(task, config, launched)
    sampler.done.set()
    sampler.join()
    gc.collect()
    shard = sum(shard.tensor.nbytes for shard in state.strategy.shards())
    mine = [shard, anonymous() - before, sampler.most - before]
    ranks: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    if state.is_main:
        told = {"strategy": launched.plan.strategy, "ranks": len(ranks)}
        told |= zip(
            ("shard", "stays", "peak"),
            (round(max(of) / MIB) for of in zip(*ranks, strict=True)),
            strict=True,
        )
        print(json.dumps({**told, "largest": WORDS * SIZES["hidden_size"] * 4 // MIB}), flush=True)
    state.close()


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        trainer.run_and_exit(lambda: measure(*sys.argv[1:3]))
