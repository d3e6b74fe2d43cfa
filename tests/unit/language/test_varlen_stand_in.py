"""The loop over documents that stands in for torch's kernel on CPUs: exact, one operation each way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trainer.language.varlen_stand_in import attend

BORDERS = torch.tensor([0, 5, 6, 13, 13, 13], dtype=torch.int32)


def inputs(dtype: torch.dtype = torch.float64, value_heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (4, 2, value_heads)
    return [
        torch.randn(13, count, 8, generator=generator, dtype=dtype).requires_grad_()
        for count in heads
    ]


def by_mask(query: Any, key: Any, value: Any, before: int, scale: float) -> torch.Tensor:
    """The same by torch's attention beside a mask of all pairs of positions."""
    document = torch.bucketize(torch.arange(13), BORDERS, right=True)
    mask = (document[:, None] == document[None]).tril()
    if before >= 0:
        mask = mask.triu(-before)
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return output[0].transpose(0, 1)


@pytest.mark.parametrize("before", [-1, 0, 2, 20])
def test_attend_has_outputs_and_gradients_of_a_mask(before: int) -> None:
    found = []
    for function in (lambda *given: attend(*given[:3], BORDERS, *given[3:]), by_mask):
        given = inputs()
        output = function(*given, before, 0.3)
        output.square().sum().backward()
        found.append([output.detach(), *(tensor.grad for tensor in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda *given: attend(*given, BORDERS, 2, 0.3), inputs())


def test_it_adds_up_in_float32_and_returns_the_dtype_it_was_given() -> None:
    narrow = [tensor.detach() for tensor in inputs(torch.bfloat16)]
    output = attend(*narrow, BORDERS, -1, 0.3)
    assert output.dtype == torch.bfloat16
    exact = by_mask(*(tensor.double() for tensor in narrow), -1, 0.3)
    torch.testing.assert_close(output, exact.bfloat16(), rtol=2**-7, atol=0)


def test_it_is_an_operation_that_torch_can_compile_and_differentiate() -> None:
    given = (*inputs(torch.float32), BORDERS, 2, 0.3)
    torch.library.opcheck(torch.ops.samecurve.varlen_stand_in.default, given)
