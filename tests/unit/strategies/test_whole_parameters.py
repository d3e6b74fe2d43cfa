"""A block in which parameters are whole, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from plans import plan, request
from torch import nn

from trainer.errors import LaunchError
from trainer.strategies.ddp import DDP
from trainer.strategies.tensors import canonical_names
from trainer.strategies.whole_parameters import whole_parameters


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.last = nn.Linear(2, 2, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=False)


class Copies(DDP):
    """Gives copies as whole parameters, as strategies that shard do."""

    def full_tensor(self, parameter: nn.Parameter) -> torch.Tensor:
        return parameter.data.clone()


@pytest.fixture
def strategy() -> DDP:
    made = Copies(plan(request("single"), world=1), Accelerator(cpu=True))
    made.model = Model()
    made._names = canonical_names(made.model)
    return made


def test_changes_of_a_block_are_kept(strategy: DDP) -> None:
    model = strategy.model
    own = model.first.weight
    with whole_parameters(strategy, ()) as whole:
        assert whole is model
        assert whole.first.weight is not own, "the model has whole copies meanwhile"
        assert whole.first.weight is whole.last.weight, "what is shared stays so"
        whole.first.weight.fill_(7.0)
    assert model.first.weight is own and model.last.weight is own
    assert own.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_half_precision_is_read_in_full_precision(strategy: DDP) -> None:
    with whole_parameters(strategy, ["frozen"]) as whole:
        assert whole.frozen.dtype == torch.float32
        whole.frozen.mul_(3.0)
    assert strategy.model.frozen.dtype == torch.bfloat16
    assert strategy.model.frozen.tolist() == [3.0, 3.0]


def test_an_error_puts_the_parameters_back_and_changes_nothing(strategy: DDP) -> None:
    own = strategy.model.first.weight
    before = own.detach().clone()

    def fail() -> None:
        with whole_parameters(strategy, ["first"]) as whole:
            whole.first.weight.fill_(7.0)
            raise RuntimeError("of the block")

    with pytest.raises(RuntimeError, match="of the block"):
        fail()
    assert strategy.model.first.weight is own and torch.equal(own, before)


def test_unknown_names_are_refused(strategy: DDP) -> None:
    with pytest.raises(LaunchError, match="the model has no parameters called middle"):
        whole_parameters(strategy, ["middle"]).__enter__()
