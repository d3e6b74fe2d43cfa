"""Muon: the numbers of torch in one process, which parameters are whose, and who computes what."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from launchers import ROOT
from plans import plan, refusal
from torch import Tensor, nn

from trainer import Task
from trainer.optim.muon import Muon
from trainer.optim.whole import Held, Matrix, Place, Round


class Net(nn.Module):
    """Layers with more rows than columns, and the reverse, between an embedding and a head. One layer
    has no gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.up = nn.Linear(24, 72)
        self.down = nn.Linear(72, 24)
        self.norm = nn.LayerNorm(24)
        self.unused = nn.Linear(24, 24, bias=False)
        self.head = nn.Linear(24, 50)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        return self.head(self.norm(hidden + self.down(self.up(hidden).relu())))


def orthogonal(matrix: Tensor) -> Tensor:
    return Muon([matrix]).update({"ns_steps": 5}, matrix)


def muon(model: nn.Module, lr: float = 0.01, **settings: Any) -> Muon:
    made = plan(optimizer="muon", lr=lr, weight_decay=0.1, optimizer_settings=settings)
    optimizer = Task().build_optimizer(model, made)
    assert isinstance(optimizer, Muon)
    return optimizer


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", ["match_rms_adamw", "original"])
def test_one_process_has_the_bits_of_torch(rule: str, nesterov: bool) -> None:
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    shared = {"nesterov": nesterov, "adjust_lr_fn": rule}
    steps: list[tuple[nn.Module, list[Any]]] = [
        (ours, [muon(ours, adam_lr=0.003, dtype="bf16", **shared)])
    ]
    matrices = [theirs.up.weight, theirs.down.weight, theirs.unused.weight]
    of_muon = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, **shared)
    groups = [
        {"params": [theirs.embedding.weight, theirs.head.weight], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.003, betas=(0.9, 0.95), fused=True)
    steps.append((theirs, [of_muon, adamw]))

    begin = copy.deepcopy(ours.state_dict())
    for number in range(9):
        ids = torch.randint(50, (8, 16), generator=torch.Generator().manual_seed(number))
        for model, optimizers in steps:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids * 7 % 50).flatten())
            if number:  # the first step has no gradient at all
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name
        assert torch.equal(begin[name], tensor) == (name == "unused.weight"), name
    assert ours.unused.weight not in steps[0][1][0].state


def test_the_iteration_in_float32_makes_singular_values_near_one() -> None:
    for shape in ((30, 12), (12, 30), (16, 16)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        found = orthogonal(matrix)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.3 and values.max() < 1.3
        assert float((left.T @ found @ right.T).diagonal().sub(values.mean()).abs().max()) < 0.5


class Parts(nn.Module):
    """All sorts of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.words = nn.Embedding(7, 4)
        self.filters = nn.Conv2d(3, 4, 3)
        self.experts = nn.Parameter(torch.ones(2, 3, 4))
        self.inner = nn.Linear(4, 4)
        self.lora_A = nn.Linear(4, 2, bias=False)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def rules(model: nn.Module, **settings: Any) -> dict[str, tuple[str, bool, float, float]]:
    optimizer = muon(model, **settings)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(own)]: (group["rule"], group["stacked"], group["weight_decay"], group["lr"])
        for group in optimizer.param_groups
        for own in group["params"]
    }


def test_hidden_matrices_are_muons_and_all_others_adamws() -> None:
    matrix, stack = ("muon", False, 0.1, 0.01), ("muon", True, 0.1, 0.01)
    edge, vector = ("adamw", False, 0.1, 0.002), ("adamw", False, 0.0, 0.002)
    wide = ("adamw", True, 0.1, 0.002)
    assert rules(Parts(), adam_lr=0.002) == {
        "pos_embed": wide,
        "cls_token": wide,
        "words.weight": edge,
        "filters.weight": matrix,
        "filters.bias": vector,
        "experts": stack,
        "inner.weight": matrix,
        "inner.bias": vector,
        "lora_A.weight": edge,
        "norm.weight": vector,
        "norm.bias": vector,
        "head.weight": edge,
    }
    named = rules(Parts(), names={"inner.*": "adamw", "words.weight": "muon", "norm.*": "muon"})
    assert (named["inner.weight"][0], named["words.weight"][0]) == ("adamw", "muon")
    assert named["norm.weight"][0] == "adamw", "a vector is no matrix"
    assert {rate for *_, rate in named.values()} == {0.01}


def test_the_rate_of_adamw_follows_the_batch_as_lr_does() -> None:
    scaled = {"lr_scaling": "linear", "reference_batch_size": 4, "micro_batch_size": 4}
    made = plan(optimizer="muon", lr=0.01, optimizer_settings={"adam_lr": 0.003}, **scaled)
    assert made.lr == 0.02
    optimizer = Task().build_optimizer(Net(), made)
    rates = {group["rule"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"muon": 0.02, "adamw": pytest.approx(0.006)}
    assert optimizer.param_groups[0]["rule"] == "muon", "lr in the log is the rate of matrices"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"dtype": "int8"}, "'int8' must be one of auto, fp32, bf16, fp16"),
        ({"adjust_lr_fn": "none"}, "'none' must be one of match_rms_adamw, original"),
        ({"names": {"a.*": "adam"}}, "'adam' must be one of muon, adamw"),
        ({"heads": 1}, "unexpected keyword argument 'heads'"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], told: str) -> None:
    [line] = refusal(lambda: plan(optimizer="muon", optimizer_settings=settings)).splitlines()
    assert "optimizer_settings" in line and told in line


def test_a_filter_is_flattened_and_a_stack_is_stepped_matrix_by_matrix() -> None:
    torch.manual_seed(2)
    model = Parts()
    before = copy.deepcopy(model.state_dict())
    optimizer = muon(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    cases = [("filters.weight", (4, 27), [...]), ("experts", (3, 4), [0, 1])]
    for name, shape, places in cases:
        for place in places:
            # The first direction of Nesterov's momentum is a multiple of the gradient.
            direction = gradients[name][place].reshape(shape) * (0.05 * 0.95 + 0.05)
            scale = 0.2 * max(shape) ** 0.5
            expected = before[name][place].reshape(shape) * (1 - 0.01 * 0.1)
            expected = expected - 0.01 * scale * orthogonal(direction)
            found = model.state_dict()[name][place].reshape(shape)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def divided(*places: Place) -> list[list[Round]]:
    """Return the rounds of each of four ranks."""
    nothing = torch.empty(0)
    held = {place.name: Held(place, {}, nothing, nothing) for place in places}
    found = []
    for rank in range(4):
        optimizer = Muon([torch.zeros(1)])
        optimizer._rank = rank
        found.append(optimizer._divide(held))
    return found


def test_owners_have_about_the_same_work_and_few_matrices_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.optim.whole._ROUND", 200)
    places, matrices = [], []
    for number in range(40):
        matrix = Matrix(f"m{number}", 0, 8 + number % 5, 20)
        quarter = matrix.size // 4
        evenly = [range(quarter * rank, quarter * (rank + 1)) for rank in range(4)]
        places.append(Place(matrix.name, matrix[2:], evenly, 0))
        matrices.append(matrix)

    loads = []
    largest = max(matrices, key=lambda matrix: matrix.size)
    for rank, rounds in enumerate(divided(*places)):
        owned = [[matrix for matrix, _ in some.back.out[rank]] for some in rounds]
        loads.append(sum(matrix.cost for own in owned for matrix in own))
        assert max(sum(matrix.size for matrix in own) for own in owned) <= 200 + largest.size
        assert len(rounds) > 3
    total = sum(matrix.cost for matrix in matrices)
    assert sum(loads) == total and max(loads) <= 1.1 * total / 4 + largest.cost


def test_a_rank_that_has_a_matrix_whole_owns_the_matrix() -> None:
    places = []
    for number in range(8):
        ranges = [range(80 * (number // 2 == rank)) for rank in range(4)]
        places.append(Place(f"m{number}", (8, 10), ranges, 0))
    for rank, rounds in enumerate(divided(*places)):
        for some in rounds:
            assert len(some.there.out[rank]) == 2
            assert sum(len(piece) for way in some.there.out for _, piece in way) == 160


def test_the_iteration_is_in_bf16_on_gpus_alone() -> None:
    optimizer = Muon([torch.zeros(1)])
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert (optimizer.dtype(cpu), optimizer.dtype(gpu)) == (torch.float32, torch.bfloat16)
    assert Muon([torch.zeros(1)], dtype="fp32").dtype(gpu) == torch.float32


def test_the_optimizer_on_the_page_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs/muon.md").read_text()
    source = (ROOT / "tests/workers/row_scaled.py").read_text()
    assert f"```python\n# row_scaled.py\n{source}```" in page
