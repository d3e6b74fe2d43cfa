"""torch's wrapper for DDP, which says where gradients were not exchanged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch.nn.parallel import distributed as torch_ddp

from ..errors import LaunchError
from ..text import listed
from .in_place import refuse_other_parameters

if TYPE_CHECKING:
    from .base import Strategy


class DistributedDataParallel(torch_ddp.DistributedDataParallel):
    """DDP whose model can be asked for what is its own (``model.config``), as under every other
    strategy.

    Its methods too, where nothing is learnt (``model.generate`` in ``evaluation_step``). What does
    not begin with a call of the wrapper exchanges no gradients, and torch does not notice.
    """

    called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.called |= self.training
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = super().__getattr__("module")
            found = getattr(model, name)
        if self.training and getattr(found, "__self__", None) is model:
            raise AttributeError(
                f"training begins with a call of the model itself: model(...), not model.{name}(...)"
            )
        return found

    def check_exchanged(self, strategy: Strategy) -> None:
        """Raise ``LaunchError`` where a bucket still waits for a gradient: none in it was averaged
        over the ranks.

        torch itself says so at the next forward pass, after a step with the rank's own gradients.
        """
        if not self.called:
            raise LaunchError(
                "training_step did not call the model that it was given, so no gradient was averaged over the ranks: "
                "begin with model(...); a method of it, or its .module, goes past the exchange"
            )
        self.called = False
        try:
            self.reducer._check_reducer_finalized()
        except RuntimeError as error:
            numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            if numbers is None:
                raise
            refuse_other_parameters(strategy)
            names = [
                name for name, _ in strategy.parameters()
            ]  # in the order in which DDP numbers them
            unused = [names[int(number)] for number in numbers[1].split()]
            raise LaunchError(
                f"the loss of this step does not depend on {listed(unused)}: no gradient was averaged over the ranks; "
                "set find_unused_parameters: true if that is meant, or freeze them (requires_grad_(False))"
            ) from None
