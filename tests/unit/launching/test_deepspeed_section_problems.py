"""Optimizer and scheduler of a DeepSpeed JSON: what cannot run, and every disagreement with the
config.
"""

from __future__ import annotations

from typing import Any

import pytest
from plans import OPTIMIZER, SAID, SCHEDULER, plan, refusal, section, with_optimizer, with_scheduler

from trainer import ConfigError
from trainer.launching.request import Request

NOT_OFFERED = "not offered from a DeepSpeed JSON (AdamW, Adam, SGD are)"
NO_SCHEDULE = "(or set schedule in the training config, and remove this section)"


@pytest.mark.parametrize(
    ("name", "kind", "params", "line"),
    [
        (
            "optimizer",
            "Lion",
            {},
            f"ds.json:12: optimizer.type: 'Lion': {NOT_OFFERED}; remove this section, and set "
            "optimizer: lion_pytorch.Lion in the training config",
        ),
        (
            "optimizer",
            "NAdam",
            {},
            f"ds.json:12: optimizer.type: 'NAdam': {NOT_OFFERED}; remove this section, and name a class in the "
            "training config, such as optimizer: torch.optim.NAdam",
        ),
        (
            "optimizer",
            "ZeroOneAdam",
            {"cuda_aware": False},
            f"ds.json:12: optimizer.type: 'ZeroOneAdam': {NOT_OFFERED}; is Adam with compressed communication, "
            "which is not offered; write AdamW",
        ),
        (
            "optimizer",
            "FusedAdam",
            {},
            f"ds.json:12: optimizer.type: 'FusedAdam': {NOT_OFFERED}; names a kernel and not an optimizer; write AdamW",
        ),
        ("optimizer", "AdamW", {"lr": -1e-4}, f"{OPTIMIZER}.lr: -0.0001: must be greater than 0"),
        ("optimizer", "AdamW", {"lr": "fast"}, f"{OPTIMIZER}.lr: 'fast': must be a number"),
        (
            "optimizer",
            "AdamW",
            {"betas": [0.9]},
            f"{OPTIMIZER}.betas: [0.9]: must be a list of 2 values",
        ),
        (
            "optimizer",
            "AdamW",
            {"freeze_step": 3},
            f"{OPTIMIZER}.freeze_step: 3: unknown key; known: adam_w_mode, amsgrad, betas, "
            "bias_correction, eps, fp32_optimizer_states, lr, set_grad_none, torch_adam, weight_decay",
        ),
        (
            "optimizer",
            "AdamW",
            {"bias_correction": False},
            f"{OPTIMIZER}.bias_correction: false: only true is offered; remove it",
        ),
        (
            "optimizer",
            "SGD",
            {"nesterov": True},
            f"{OPTIMIZER}.nesterov: true: only false is offered; remove it",
        ),
        (
            "optimizer",
            "AdamW",
            {"max_grad_norm": 1.0},
            f"{OPTIMIZER}.max_grad_norm: 1.0: is no setting of an optimizer; "
            'write "gradient_clipping" at the top level',
        ),
        (
            "scheduler",
            "OneCycle",
            {"cycle_min_lr": 1e-5},
            "ds.json:22: scheduler.type: 'OneCycle': not offered; known: WarmupCosineLR, WarmupDecayLR, WarmupLR "
            + NO_SCHEDULE,
        ),
        (
            "scheduler",
            "WarmupDecayLr",
            {},
            f"ds.json:22: scheduler.type: 'WarmupDecayLr': not offered; did you mean 'WarmupDecayLR'? {NO_SCHEDULE}",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_num_steps": "many"},
            f"{SCHEDULER}.warmup_num_steps: 'many': must be a whole number",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_type": "cubic"},
            f"{SCHEDULER}.warmup_type: 'cubic': must be one of 'linear', 'log'",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"last_batch_iteration": 3},
            f"{SCHEDULER}.last_batch_iteration: 3: only -1 is offered; remove it",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_min_lr": 1e-5},
            f"{SCHEDULER}.warmup_min_lr: 1e-05: only 0.0 is offered; remove it",
        ),
        # Each type takes its own settings.
        (
            "scheduler",
            "WarmupLR",
            {"total_num_steps": 10},
            f"{SCHEDULER}.total_num_steps: 10: unknown key; known: last_batch_iteration, warmup_max_lr, warmup_min_lr, "
            "warmup_num_steps, warmup_type",
        ),
        (
            "scheduler",
            "WarmupCosineLR",
            {"warmup_max_lr": 1e-3},
            f"{SCHEDULER}.warmup_max_lr: 0.001: unknown key; known: cos_min_ratio, last_batch_iteration, "
            "total_num_steps, warmup_min_ratio, warmup_num_steps, warmup_type",
        ),
    ],
)
def test_sections_that_cannot_run(name: str, kind: str, params: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(name, kind, params)
    assert str(caught.value) == line


KEEP = 'keep one, or write "auto"'


@pytest.mark.parametrize(
    ("asks", "settings", "line"),
    [
        (
            with_optimizer("AdamW"),
            {"optimizer": "sgd"},
            f"ds.json:12: optimizer.type: 'AdamW': disagrees with optimizer 'sgd' at {SAID}; {KEEP}",
        ),
        (
            with_optimizer(lr=1e-4),
            {"lr": 1e-3},
            f"{OPTIMIZER}.lr: 0.0001: disagrees with lr 0.001 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR"),
            {"schedule": "cosine"},
            f"ds.json:22: scheduler.type: 'WarmupDecayLR': disagrees with schedule 'cosine' at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_steps": 3},
            f"{SCHEDULER}.warmup_num_steps: 5: disagrees with warmup_steps 3 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_fraction": 0.5},
            f"{SCHEDULER}.warmup_num_steps: 5: disagrees with warmup_fraction 0.5 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {},
            f"{SCHEDULER}.total_num_steps: 500: disagrees with max_steps 10 at TrainConfig; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {"epochs": 2, "max_steps": None},
            f'{SCHEDULER}.total_num_steps: 500: disagrees with epochs 2 at {SAID}; keep one, or write "auto"',
        ),
        (
            with_scheduler("WarmupLR", warmup_max_lr=0.1),
            {"lr": 1e-3},
            f"{SCHEDULER}.warmup_max_lr: 0.1: disagrees with lr 0.001 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR"),
            {"final_lr_ratio": 0.1},
            f"{SAID}: final_lr_ratio: 0.1: WarmupDecayLR at ds.json:21 (scheduler) ends at 0; remove one of the two",
        ),
        (
            with_scheduler("WarmupCosineLR", cos_min_ratio=0.2),
            {"final_lr_ratio": 0.1},
            f"{SCHEDULER}.cos_min_ratio: 0.2: disagrees with final_lr_ratio 0.1 at {SAID}; {KEEP}",
        ),
    ],
)
def test_sections_that_disagree(asks: Request, settings: dict[str, Any], line: str) -> None:
    assert refusal(lambda: plan(asks, **settings)) == line
