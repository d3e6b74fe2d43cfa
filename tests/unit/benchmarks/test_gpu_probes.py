"""The questions to a GPU: what they compute, and that each runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu_probes import PROBES, TINY, borders, dense_mask


def test_the_dense_mask_is_causal_attention_within_each_document() -> None:
    starts = borders(TINY)
    values = torch.randn(TINY.rows, 1, TINY.length, 4)
    masked = F.scaled_dot_product_attention(
        values, values, values, attn_mask=dense_mask(TINY, starts)
    )
    flat = values.reshape(1, 1, -1, 4)
    alone = []
    for start, stop in pairwise(starts):
        document = flat[:, :, start:stop]
        alone.append(F.scaled_dot_product_attention(document, document, document, is_causal=True))
    torch.testing.assert_close(masked.reshape(1, 1, -1, 4), torch.cat(alone, dim=2))


@pytest.mark.slow
def test_every_probe_is_rehearsed(tmp_path: Path, rehearse: Callable[..., str]) -> None:
    out = tmp_path / "probes.jsonl"
    rehearse("gpu_probes", out, "--budget", "500")
    rows = {row["probe"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == list(PROBES)
    assert [probe for probe, row in rows.items() if "error" in row] == []
    assert rows["saving"]["second_stall_seconds"] > 0 and rows["saving"]["gib"] > 0
    assert rows["loading fsdp"]["gib_per_second"] > 0 and rows["attention mask"]["ms"] > 0
    assert "not_run" in rows["attention varlen"]
    plain, compiled, chunks = (
        rows[f"loss {way}"]["loss"] for way in ("plain", "compiled", "chunks")
    )
    assert plain == pytest.approx(compiled, rel=1e-3) and plain == pytest.approx(chunks, rel=1e-3)
