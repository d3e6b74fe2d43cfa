"""One rank of a rehearsed job, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from ..checkpoint.snapshot import take
from ..distributed.started_by import env_number
from ..hooks import Callback, StepInfo
from ..loop import Trainer
from ..reporting.directory import as_json
from ..reporting.gpus import memory_of
from ..run import Read, Run, Setup
from ..script import trainer_of
from .alone import answer_alone, buckets_of, compare_alone, use_fakes
from .cuda import install_cuda, replace_in
from .fake_device import FakeDevice
from .fake_parameters import install_parameters
from .ledger import ACTIVATIONS, EXCHANGED, GRADIENTS, OPTIMIZER, PARAMETERS, Ledger
from .models_without_files import build_alone

STEPS = 2  # the first makes the optimizer's state, the second is measured


class Observer(Callback):
    """Tells a recorder the phases of the last step, and the kinds of the storages."""

    first_collective = 0

    def __init__(self, recorder: FakeDevice) -> None:
        self.recorder = recorder
        self.ledger = recorder.ledger

    def on_launch(self, run: Setup) -> None:
        if self.ledger.device == "cuda":
            build_alone()
            if run.plan.deepspeed:
                compare_alone()

    def on_data(self, run: Read) -> None:
        self.recorder.large_is_fake = True

    def on_model(self, run: Read, model: Any) -> None:
        self.recorder.large_is_fake = False
        self.ledger.claim_new(PARAMETERS)  # with the scales of layers in 4 bits

    def on_start(self, run: Run) -> None:
        model, strategy = run.strategy.model, run.strategy
        own = [getattr(parameter, "ds_tensor", parameter) for parameter in model.parameters()]
        self.ledger.claim(PARAMETERS, [*own, *model.parameters(), *model.buffers()])
        self._claim_optimizer(run)
        self.ledger.claim(EXCHANGED, buckets_of(model))
        self.ledger.claim_new(GRADIENTS)  # an engine has memory for gradients from the start
        self.ledger.enter("built")
        self.ledger.enter("")
        replace_in(
            strategy,
            to_device=self._entering("forward", strategy.to_device),
            micro_step=self._entering("forward", strategy.micro_step),
            backward=self._entering("backward", strategy.backward),
        )

    def on_window(self, run: Run, window: Any) -> None:
        self.ledger.window = run.step + 1
        self.first_collective = len(self.recorder.collectives)
        self.recorder.reads.clear()

    def before_update(self, run: Run) -> None:
        gradients = [p.grad for p in run.strategy.model.parameters() if p.grad is not None]
        self.ledger.claim(GRADIENTS, gradients)
        if not gradients:  # an engine has taken them
            self.ledger.claim_new(GRADIENTS)
        self._enter("step")

    def on_step(self, run: Run, info: StepInfo) -> None:
        self._claim_optimizer(run)
        self.ledger.enter("")
        if self.ledger.window == STEPS and run.config.keep_last:
            self.recorder.large_is_fake = True
            self._enter("save")
            take(run.parts, run.parts.pieces(), copied=True)
            self.ledger.enter("")

    def _claim_optimizer(self, run: Run) -> None:
        optimizer = run.strategy.optimizer
        # With the copies in full precision that an engine steps.
        self.ledger.claim(OPTIMIZER, tree_leaves((optimizer.param_groups, optimizer.state)))

    def _enter(self, phase: str) -> None:
        self.ledger.enter(phase if self.ledger.window == STEPS else "")

    def _entering(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the beginning of a phase before each call.

        The tensors of a result, a batch on the device, are activations and no gradients.
        """

        def enter_and_call(*args: Any, **named: Any) -> Any:
            self._enter(phase)
            result = function(*args, **named)
            self.ledger.claim(ACTIVATIONS, tree_leaves(result))
            return result

        return enter_and_call


def observe(words: Sequence[str], recorder: FakeDevice) -> dict[str, Any]:
    """Train two steps of a command line, and return what the second took. Collective.

    ``collectives`` are those from the start of the job. Those of the step begin at ``first``. Each
    of ``reads`` is a key of ``FakeDevice.reads``, and how often.
    """
    observer = Observer(recorder)
    with recorder:
        trainer: Trainer = trainer_of(words, observer)
        for info in trainer.steps():
            if info.step == STEPS:
                break

    phases = recorder.ledger.phases()
    peak = max(phases, key=lambda name: phases[name]["most"])
    return {
        "plan": as_json(trainer.run.facts),
        "phases": phases,
        "peak": peak,
        "most": phases[peak]["most"],
        "collectives": recorder.collectives,
        "first": observer.first_collective,
        "reads": [(*place, times) for place, times in recorder.reads.items()],
    }


def rehearse(gpu: str, words: Sequence[str]) -> dict[str, Any]:
    """Observe the rank that the environment tells among fakes, on a GPU without values."""
    device = FakeDevice(Ledger("cuda"))
    install_cuda(device, gpu, int(memory_of(gpu) * 2**30))
    install_parameters()
    use_fakes()
    answer_alone()
    rank, world_size = env_number("RANK"), env_number("WORLD_SIZE")
    if world_size:
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    return observe(words, device)
