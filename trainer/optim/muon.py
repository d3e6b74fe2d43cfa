"""Muon for hidden matrices, and AdamW for all other parameters, in a single optimizer.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". In a single process
the numbers are those of ``torch.optim.Muon`` and of ``torch.optim.AdamW``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as step_adamw

from ..strategies.tensors import local
from ..text import listed
from .whole import Matrix, WholeOptimizer

if TYPE_CHECKING:
    from ..run_plan import Plan
    from ..strategies import Strategy

_SCALES = ("match_rms_adamw", "original")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Of the polynomial that each iteration applies to the singular values, and the least norm.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPSILON = 1e-7


class Muon(WholeOptimizer):
    """Steps groups by Muon, and those with ``rule: adamw`` by AdamW.

    Args:
        params: parameters, or groups. A group with ``stacked: True`` has parameters whose last two
            dimensions are matrices. Other parameters are flattened to the rows of a matrix.
        lr: of matrices, and of other parameters if there is no ``adam_lr``.
        adam_lr: of the parameters that AdamW steps. Scales with the batch as ``lr`` does.
        weight_decay: of both, decoupled.
        momentum, nesterov, ns_steps, adjust_lr_fn: of Muon, as in ``torch.optim.Muon``. By default
            updates are as large as AdamW's, so that a rate for AdamW serves.
        dtype: of the iteration, ``bf16`` or ``fp32``. By default bf16 on GPUs, fp32 on CPUs.
        betas, eps: of AdamW.
        muon, adamw: patterns of names, such as ``["*.proj.weight"]``, which go before the rule.
    """

    kept = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        adam_lr: float | None = None,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        dtype: str | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        muon: Sequence[str] = (),
        adamw: Sequence[str] = (),
    ) -> None:
        if adjust_lr_fn not in _SCALES:
            raise ValueError(f"adjust_lr_fn {adjust_lr_fn!r}: must be one of {', '.join(_SCALES)}")
        if dtype not in (None, *_DTYPES):
            raise ValueError(f"dtype {dtype!r}: must be one of {', '.join(_DTYPES)}")
        if isinstance(muon, str) or isinstance(adamw, str):
            raise ValueError("muon and adamw must be lists of patterns of names")
        groups = list(params)
        for group in groups:
            if adam_lr is not None and isinstance(group, dict) and group.get("rule") == "adamw":
                group.setdefault("lr", adam_lr)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "rule": "muon",
            "stacked": False,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "betas": tuple(betas),
            "eps": eps,
            "fused": True,  # of AdamW, whose step number is on the device then
        }
        super().__init__(groups, defaults)
        self._dtype = dtype

    @classmethod
    def groups_of(cls, model: nn.Module, plan: Plan) -> list[dict[str, Any]]:
        """Divide the trainable parameters of a model. Vectors do not decay.

        AdamW steps vectors, embeddings, the output layer (``get_output_embeddings``, else the last
        nn.Linear of the model), LoRA's factors and parameters whose own name has ``embed`` or
        ``token``.
        """
        settings = plan.optimizer_settings
        rate = {}
        if settings.get("adam_lr") is not None:
            rate = {"lr": settings["adam_lr"] * plan.lr / plan.lr_reference}
        edges = _edges(model)
        filters = {
            id(module.weight) for module in model.modules() if isinstance(module, nn.modules.conv._ConvNd)
        }
        found: dict[tuple[str, bool, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_vector = parameter.dim() < 2
            is_edge = id(parameter) in edges or _is_edge_by_name(name)
            rule = "adamw" if is_vector or is_edge or _matches(name, settings, "adamw") else "muon"
            if not is_vector and _matches(name, settings, "muon"):
                rule = "muon"
            is_stacked = rule == "muon" and parameter.dim() > 2 and id(parameter) not in filters
            found.setdefault((rule, is_stacked, is_vector), []).append(parameter)

        return [
            {
                "params": own,
                "rule": rule,
                "stacked": is_stacked,
                **(rate if rule == "adamw" else {}),
                **({"weight_decay": 0.0} if is_vector else {}),
            }
            for (rule, is_stacked, is_vector), own in sorted(found.items(), key=lambda pair: pair[0])
        ]

    def bind(self, strategy: Strategy, names: Sequence[Sequence[str]]) -> list[str]:
        super().bind(strategy, names)
        assert self._parts is not None
        shapes = self._parts.shapes
        of_rule: dict[str, list[str]] = {"muon": [], "adamw": []}
        for group, own in zip(self.param_groups, names, strict=True):
            of_rule[group["rule"]] += [name for name in own if name in shapes]
        matrices = [name for name in of_rule["adamw"] if len(shapes[name]) > 1]
        vectors = len(of_rule["adamw"]) - len(matrices)
        return [
            f"muon steps {len(of_rule['muon'])} parameters, adamw {listed([*matrices, f'{vectors} vectors'])}: optimizer_settings muon and "
            "adamw name others"
        ]

    def is_whole(self, group: dict[str, Any]) -> bool:
        return bool(group["rule"] == "muon")

    def form(self, group: dict[str, Any], shape: Sequence[int]) -> tuple[int, int, int]:
        if group["stacked"]:
            return math.prod(shape[:-2]), shape[-2], shape[-1]
        return super().form(group, shape)

    def dtype(self, device: torch.device) -> torch.dtype:
        return _DTYPES[self._dtype or ("fp32" if device.type == "cpu" else "bf16")]

    def accumulate(self, group: dict[str, Any], gradient: Tensor, *kept: Tensor) -> None:
        kept[0].lerp_(gradient, 1 - group["momentum"])

    def direction(self, group: dict[str, Any], gradient: Tensor, *kept: Tensor) -> Tensor:
        if not group["nesterov"]:
            return kept[0]
        return gradient.lerp(kept[0], group["momentum"])

    def update(self, group: dict[str, Any], matrix: Tensor) -> Tensor:
        return orthogonal(matrix, group["ns_steps"])

    def apply(
        self, group: dict[str, Any], weights: Tensor, update: Tensor, matrix: Matrix
    ) -> None:
        rows, columns = matrix.rows, matrix.columns
        scale = math.sqrt(max(1, rows / columns))
        if group["adjust_lr_fn"] == "match_rms_adamw":
            scale = 0.2 * math.sqrt(max(rows, columns))
        weights.mul_(1 - group["lr"] * group["weight_decay"])
        weights.add_(update, alpha=-(group["lr"] * scale))

    def step_elements(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=local(parameter).device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        beta1, beta2 = group["betas"]
        step_adamw(
            [local(parameter.data) for parameter in parameters],
            [local(gradient) for gradient in gradients if gradient is not None],
            *([local(state[key]) for state in states] for key in ("exp_avg", "exp_avg_sq")),
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def _edges(model: nn.Module) -> set[int]:
    """Return the ids of the weights of embeddings and of the output layer."""
    embeddings = (nn.Embedding, nn.EmbeddingBag)
    linear = None
    edges, heads = set(), set()
    for module in model.modules():
        if isinstance(module, embeddings):
            edges.add(id(module.weight))
        if isinstance(module, nn.Linear):
            linear = module
        head = getattr(module, "get_output_embeddings", lambda: None)()
        if head is not None:
            heads.add(id(head.weight))
    if not heads and linear is not None:
        heads.add(id(linear.weight))
    return edges | heads


def _is_edge_by_name(name: str) -> bool:
    own = name.rpartition(".")[2]
    return "lora_" in name or "embed" in own or "token" in own


def _matches(name: str, settings: dict[str, Any], key: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in settings.get(key, ()))


def orthogonal(matrix: Tensor, steps: int) -> Tensor:
    """Return about the nearest orthogonal matrix, by the iteration of Newton and Schulz."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=_EPSILON)
    for _ in range(steps):
        gram = x @ x.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.T if is_tall else x
