"""Muon for hidden matrices, and AdamW for all other parameters, in a single optimizer.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". In a single process
the numbers are those of ``torch.optim.Muon`` and of ``torch.optim.AdamW``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from ..private.torch import ConvolutionBase, adjusted_lr
from ..strategies.tensors import DTYPES
from ..text import listed
from .whole import Group, Matrix, WholeOptimizer

if TYPE_CHECKING:
    from ..run_plan import Plan
    from ..strategies import Strategy

# Names of LoRA's factors, and of embeddings without a module.
_EDGES = ("*lora_*", "*embed", "*embedding", "*token")


class Muon(WholeOptimizer, AdamW):
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
        dtype: str = "auto",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        names: Mapping[str, str] | None = None,
    ) -> None:
        allowed: list[Any] = [(rule, ("muon", "adamw")) for rule in (names or {}).values()]
        allowed += [(dtype, ("auto", *DTYPES)), (adjust_lr_fn, ("match_rms_adamw", "original"))]
        for value, known in allowed:
            if value not in known:
                raise ValueError(f"{value!r} must be one of {', '.join(known)}")
        super().__init__(params, lr, betas, eps, weight_decay)
        self._dtype = DTYPES.get(dtype)
        defaults = {
            "rule": "muon",
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        for group in self.param_groups:
            group |= defaults | group

    @staticmethod
    def groups_of(model: nn.Module, plan: Plan) -> list[Group]:
        """Divide the trainable parameters of a model. Vectors do not decay.

        AdamW steps vectors, embeddings, the last nn.Linear of the model, which computes the output,
        LoRA's factors, and parameters whose name ends in ``embed``, ``embedding`` or ``token``.
        """
        settings = plan.optimizer_settings
        rates = {
            "muon": plan.lr,
            "adamw": (settings.get("adam_lr") or plan.lr_reference) * plan.lr / plan.lr_reference,
        }
        patterns = dict.fromkeys(_EDGES, "adamw") | settings.get("names", {})

        def weights(kind: Any) -> list[Any]:
            return [layer.weight for layer in model.modules() if isinstance(layer, kind)]

        filters = {*weights(ConvolutionBase)}
        linear = [weight for weight in weights(nn.Linear) if weight.requires_grad]
        edges = {*linear[-1:], *weights(nn.Embedding)}

        groups: dict[str, Group] = {}
        for name, own in model.named_parameters():
            if not own.requires_grad:
                continue
            rule = "adamw" if own in edges else "muon"
            for pattern, named in patterns.items():
                if fnmatchcase(name, pattern):
                    rule = named
            if own.dim() < 2:
                rule = "adamw"
            group = {
                "rule": rule,
                "lr": rates[rule],
                "weight_decay": settings["weight_decay"] if own.dim() > 1 else 0.0,
                "stacked": own.dim() > 2 and own not in filters,
                "fused": True,  # for AdamW
            }
            groups.setdefault(str(group), {**group, "params": []})["params"].append(own)
        return sorted(groups.values(), key=itemgetter("rule"), reverse=True)

    def bind(self, strategy: Strategy, groups: Sequence[Mapping[str, Any]]) -> list[str]:
        super().bind(strategy, groups)
        return [
            f"{group['rule']} steps {listed(own['names'])}"
            for group, own in zip(self.param_groups, groups, strict=True)
        ]

    def dtype(self, device: torch.device) -> torch.dtype:
        return self._dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)

    def direct(self, group: Group, gradient: Tensor, *kept: Tensor) -> None:
        (momentum,) = kept
        momentum.lerp_(gradient, 1 - group["momentum"])
        gradient.lerp_(momentum, group["momentum"] if group["nesterov"] else 1.0)

    def update(self, group: Group, matrix: Tensor) -> Tensor:
        """Return about the nearest orthogonal matrix, by the iteration of Newton and Schulz."""
        if matrix.shape[0] > matrix.shape[1]:
            return self.update(group, matrix.t()).t()
        x: Tensor = matrix / matrix.norm().clamp(min=1e-7)
        for _ in range(group["ns_steps"]):
            gram = x @ x.T
            # The polynomial 3.4445 s - 4.775 s^3 + 2.0315 s^5 of the singular values.
            factor = torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
            x = torch.addmm(x, factor, x, beta=3.4445)
        return x

    def rate(self, group: Group, matrix: Matrix) -> float:
        return adjusted_lr(group["lr"], group["adjust_lr_fn"], (matrix.rows, matrix.columns))

    def step_elements(self, group: Group) -> bool:
        if group["rule"] == "muon":
            return False
        every, self.param_groups = self.param_groups, [group]
        AdamW.step(self)
        self.param_groups = every
        return True
