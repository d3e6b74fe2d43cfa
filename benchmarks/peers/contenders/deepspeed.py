"""The loop by hand on DeepSpeed's own engine, which clips, steps and schedules."""

from __future__ import annotations

import deepspeed
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, loss_of


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    deepspeed.init_distributed("gloo")
    model = work.build_model()
    optimizer = work.optimizer(model)
    size = sum(parameter.numel() for parameter in model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": work.batch,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        # Its default of 5e8 gradients is a bucket of 2 GB.
        "zero_optimization": {"stage": int(work.strategy[-1]), "reduce_bucket_size": size},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=work.schedule(optimizer), config=config
    )
    for step, batch in enumerate(work.loader(), 1):
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        if step % READ_EVERY == 0:
            shown = loss.detach()
            deepspeed.comm.all_reduce(shown)
            print(step, shown.item() / work.world)
        turns.step_done()
    # Collective: every rank asks for all of them.
    return {
        name: safe_get_full_fp32_param(parameter)
        for name, parameter in engine.module.named_parameters()
    }
