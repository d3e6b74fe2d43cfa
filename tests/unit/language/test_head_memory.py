"""The memory of a model's last layer: fused with the loss, it never holds all logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launchers import clean_environment

# The gradients of the weights are there before: what is measured is what one step adds.
STEP = """
import re, sys, torch
from trainer.language.loss import FusedHead, mean_loss

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(32_000, 64), torch.nn.Linear(64, 32_000, bias=False)

    def forward(self, input_ids, use_cache):
        return type("Output", (), {"logits": self.head(self.embedding(input_ids))})

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

torch.manual_seed(0)
model = Model()
ids, labels = torch.randint(0, 32_000, (2, 4, 1024))
if sys.argv[1] == "fused":
    model.head.__class__, model.head.always = FusedHead, True
mean_loss(model, {"input_ids": ids[:, :16]}, labels[:, :16]).backward()
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
loss = mean_loss(model, {"input_ids": ids}, labels)
loss.backward()
print(loss.item(), resident("VmHWM") - before)
"""


@pytest.mark.slow
def test_fused_head_takes_a_fifth_of_the_memory_at_32k_words_and_4096_tokens(
    tmp_path: Path,
) -> None:
    (tmp_path / "step.py").write_text(STEP)
    found = {}
    for loss in ("plain", "fused"):
        words = [sys.executable, str(tmp_path / "step.py"), loss]
        done = subprocess.run(
            words, env=clean_environment(), capture_output=True, text=True, check=True
        )
        found[loss] = tuple(map(float, done.stdout.split()))
    (plain_loss, plain_peak), (fused_loss, fused_peak) = found["plain"], found["fused"]
    assert fused_loss == pytest.approx(plain_loss, rel=1e-6)
    assert plain_peak > 900, f"MiB: logits and their gradients are 500 MiB each; {found}"
    assert fused_peak * 5 <= plain_peak, found
