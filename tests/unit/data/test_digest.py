"""Checksums of samples: what counts in them, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainer.data.digest import digest


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(3), torch.ones(3)),
        (torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        ({"x": 1}, {"y": 1}),
        ("café", "cafe"),
        ((1, "a"), ("a", 1)),
        (torch.tensor(1j).conj(), torch.tensor(2j).conj()),
        (np.array(["a", 1], dtype=object), np.array(["a", 2], dtype=object)),
    ],
)
def test_different_items_have_different_digests(first: Any, second: Any) -> None:
    assert digest(first) != digest(second)
    assert digest(first) == digest(first)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (torch.arange(3), 1334598860),
        ({"x": np.arange(3), "y": 1}, 1499285731),
        ("café", 3929000296),
        ({"a", "b"}, 1612668991),
    ],
)
def test_digests_stay_what_checkpoints_hold(item: Any, expected: int) -> None:
    assert digest(item) == expected


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors"
)
@pytest.mark.parametrize(
    "kind",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda rows: torch.nested.nested_tensor([rows]),
    ],
)
def test_sparse_and_nested_tensors_differ_by_their_values(kind: Any) -> None:
    item = kind(torch.eye(3))
    assert digest(item) == digest(kind(torch.eye(3)))
    assert digest(item) != digest(kind(2 * torch.eye(3)))


def test_addresses_of_objects_do_not_count() -> None:
    """An object's address differs on every rank; the tensor beside it is what counts."""
    first, second = ({"x": torch.ones(2), "made_by": object(), "set": {"a", "b"}} for _ in range(2))
    assert digest(first) == digest(second)
    assert digest(torch.empty(0)) == digest(torch.empty(0))

    # Equal texts at different addresses.
    arrays = [np.array(["".join(["a", "b"]), [1]], dtype=object) for _ in range(2)]
    assert digest(arrays[0]) == digest(arrays[1])
