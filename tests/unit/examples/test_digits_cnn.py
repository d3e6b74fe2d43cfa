"""The digits are real, split without overlap and the same on every call; their losses mean what
they say.
"""

from __future__ import annotations

import torch
from digits_cnn import DigitsCNN


def test_digits_are_all_of_scikit_learns_once() -> None:
    data = DigitsCNN().build_data()
    assert (len(data.train), len(data.evaluation)) == (1438, 359)
    images = torch.cat([data.train.images, data.evaluation.images])
    assert images.shape == (1797, 1, 8, 8) and images.min() == 0 and images.max() == 1
    assert len(images.flatten(1).unique(dim=0)) == 1797, "no image twice, hence none in both parts"
    assert torch.cat([data.train.labels, data.evaluation.labels]).bincount().tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip


def test_digits_split_is_the_same_on_every_call_and_follows_its_seed() -> None:
    first, second, other = (DigitsCNN(split_seed=seed).build_data() for seed in (0, 0, 1))
    assert torch.equal(first.evaluation.images, second.evaluation.images)
    assert not torch.equal(first.evaluation.images, other.evaluation.images)
