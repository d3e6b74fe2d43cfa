"""What decides the numbers of a run."""

from __future__ import annotations

from trainer.config.fingerprint import fingerprint


def test_float32_counts_where_it_is_not_what_runs_before_the_key_had() -> None:
    """So that their checkpoints go on."""
    assert fingerprint({"seed": 0, "float32": "exact", "max_grad_norm": None}) == {"seed": 0, "max_grad_norm": None}
    assert fingerprint({"seed": 0, "float32": "tf32"}) == {"seed": 0, "float32": "tf32"}
