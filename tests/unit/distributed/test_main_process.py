"""Which process is the main one, before and after a launch, and where data is loaded."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from trainer import is_main


def test_a_plain_process_is_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert is_main()


@pytest.mark.parametrize(
    ("variables", "main"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "MASTER_ADDR": "here",
            },
            False,
        ),
    ],
)
def test_before_a_launch_the_launchers_rank_counts(
    variables: dict[str, str], main: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_main() == main


class Asks:
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        return is_main()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_that_loads_data_is_not_the_main_one(workers: int) -> None:
    [batch] = DataLoader(Asks(), batch_size=2, num_workers=workers)  # type: ignore[arg-type]
    assert torch.equal(batch, torch.tensor([workers == 0] * 2))
