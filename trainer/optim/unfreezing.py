"""Layers that are frozen at first, and trained from some step of the run on.

What a run may unfreeze is in the optimizer from the start, in parameter groups of its own, and the
strategy is prepared to train it: an engine that divides the model cannot take more parameters
later. Then the strategy freezes these groups, and unfreezes each at its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..config.interval import checked_interval
from ..config.unfreeze import Unfreeze, entries_of
from ..errors import ConfigError, LaunchError, Origin, Problem
from ..private.torch import set_schedule
from ..strategies.tensors import canonical_state
from ..text import did_you_mean, listed

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..config.train_config import TrainConfig
    from ..plan import Plan
    from ..strategies import Strategy

BY_CALLBACK = "run.unfreeze"


@dataclass(kw_only=True, eq=False)
class FrozenLayers:
    """The layers of one entry of ``unfreeze``.

    Args:
        patterns: the entry's ``layers``.
        key: of the entry in the config, for messages.
        at: the optimizer step after which they are trained; None where code says when.
        lr: their learning rate, scaled as the config's; None where they have that.

    Attributes:
        names: of the parameters.
        elements: how many there are in all.
        operations: for a token, what training them adds to a step.
        groups: the numbers of their parameter groups.
        unfrozen_at: the step after which they are trained; None while they are frozen.
        given_lr: the rate that ``run.unfreeze`` gave them.
    """

    patterns: list[str]
    key: str
    at: int | None
    lr: float | None
    names: list[str] = field(default_factory=list)
    elements: int = 0
    operations: int = 0
    groups: list[int] = field(default_factory=list)
    unfrozen_at: int | None = None
    given_lr: float | None = None

    @property
    def is_frozen(self) -> bool:
        return self.unfrozen_at is None

    @property
    def title(self) -> str:
        return ", ".join(self.patterns)

    @property
    def until(self) -> str:
        """Return until when they are frozen, for people."""
        return BY_CALLBACK if self.at is None else f"step {self.at}"


class Unfreezing:
    """What a run unfreezes, and what of it is frozen now.

    Args:
        config: its key ``unfreeze`` says which layers, and when.
        plan: of the run.
        steps_per_epoch: None for a stream.
        origins: of the config's values, by key, for messages.

    Attributes:
        entries: in the order of the config.
    """

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        steps_per_epoch: int | None,
        origins: Mapping[str, Origin],
    ) -> None:
        self._plan = plan
        self._origins = origins
        self._strategy: Strategy
        self._schedule: LRScheduler
        self._all: tuple[int, int] = (0, 0)  # trainable elements, operations; nothing frozen

        self.entries: list[FrozenLayers] = []
        for place, values in entries_of(config.unfreeze):
            entry = Unfreeze(**values)
            key = ".".join(("unfreeze", *place))
            at = checked_interval(entry.at, steps_per_epoch, self._origin_of(f"{key}.at"))
            layers = FrozenLayers(
                patterns=entry.patterns,
                key=key,
                at=None if at is None else at.first_step,
                lr=None if entry.lr is None else self._scaled(entry.lr),
            )
            self.entries.append(layers)

    def _scaled(self, rate: float) -> float:
        """Scale a rate as the config's own follows the global batch."""
        if self._plan.lr == self._plan.lr_reference:
            return rate
        return rate * (self._plan.lr / self._plan.lr_reference)

    # -- before the strategy prepares the model ---------------------------------------------------

    def find(self, model: nn.Module) -> None:
        """Find the layers in a model, and make them trainable, as the run will have them.

        Raises:
            ConfigError: an entry names nothing, or what cannot be trained, or everything.
        """
        if not self.entries:
            return
        self._refuse_other_forms(model)

        names = _names_of(model)
        taken: set[Tensor] = set()
        for layers in self.entries:
            found = [p for p in names if p not in taken and _matches(names[p], layers.patterns)]
            if not found:
                raise self._problem(layers, _nothing_named(model, names, taken, layers.patterns))

            integers = [names[p][0] for p in found if not p.is_floating_point()]
            if integers:
                rule = f"{listed(integers)}: stored as integers (quantized), cannot be trained"
                raise self._problem(layers, rule)
            layers.names = [names[p][0] for p in found]
            layers.elements = sum(p.numel() for p in found)
            taken.update(found)
            for parameter in found:
                parameter.requires_grad_(True)

        if not any(p.requires_grad for p in names if p not in taken):
            rule = "nothing would be trained before: leave some trainable layers (a head) out"
            raise self._problem(self.entries[0], rule)

    def _refuse_other_forms(self, model: nn.Module) -> None:
        if self._plan.tensor_parallel_size > 1:
            rule = "not offered under tensor parallelism"
            raise self._problem(self.entries[0], rule)
        if hasattr(model, "peft_config"):
            rule = (
                "not offered for a model with an adapter, whose checkpoints hold the adapter alone"
            )
            raise self._problem(self.entries[0], rule)

    def _problem(self, layers: FrozenLayers, rule: str, key: str = "layers") -> ConfigError:
        origin = self._origin_of(f"{layers.key}.{key}")
        value = layers.title if key == "layers" else layers.lr
        return ConfigError(Problem(origin=origin, value=value, rule=rule))

    def _origin_of(self, name: str) -> Origin:
        """Return where a setting of an entry comes from, such as ``unfreeze.0.lr``."""
        of_key = self._origins.get("unfreeze", Origin("TrainConfig"))
        return self._origins.get(name, of_key).named(name)

    def check_held(self, optimizer: Optimizer, model: nn.Module, built_by: str | None) -> None:
        """Raise ``LaunchError`` where a task's own optimizer leaves out layers of an entry."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        parameters = dict(canonical_state(model))
        for layers in self.entries:
            missing = [name for name in layers.names if id(parameters[name]) not in held]
            if missing:
                raise LaunchError(
                    f"{built_by} leaves out {listed(missing)}, which {layers.key} unfreezes: give "
                    "the optimizer all parameters whose requires_grad is set, as it is set for "
                    "these when the optimizer is built"
                )

    def split_groups(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Put the layers of each entry into parameter groups of their own, behind the others.

        A group keeps its settings (weight decay or none), but for the rate of an entry.

        Raises:
            LaunchError: no other parameter is left in the optimizer.
        """
        parameters = dict(canonical_state(model))
        groups = optimizer.param_groups
        for layers in self.entries:
            own = {id(parameters[name]) for name in layers.names}
            added = []
            for group in groups:
                chosen = [p for p in group["params"] if id(p) in own]
                if chosen:
                    group["params"] = [p for p in group["params"] if id(p) not in own]
                    added.append(self._group_of(layers, group, chosen))
            groups.extend(added)

        # Engines make one vector of each group; one without a trainable parameter would be empty.
        groups[:] = [group for group in groups if any(p.requires_grad for p in group["params"])]
        for layers in self.entries:
            own = {id(parameters[name]) for name in layers.names}
            layers.groups = [n for n, group in enumerate(groups) if id(group["params"][0]) in own]
        if sum(len(layers.groups) for layers in self.entries) == len(groups):
            raise LaunchError("the optimizer holds no parameter beside those that unfreeze names")

    def _group_of(
        self, layers: FrozenLayers, group: Mapping[str, Any], parameters: list[Tensor]
    ) -> dict[str, Any]:
        made = {**group, "params": parameters}
        if "name" in group:
            made["name"] = f"{group['name']} of {layers.title}"
        if layers.lr is not None:
            rate = made["lr"]
            made["lr"] = rate.new_tensor(layers.lr) if isinstance(rate, Tensor) else layers.lr
        return made

    def describe(self, groups: Sequence[dict[str, Any]]) -> None:
        """Add to what is reported of the parameter groups until when they are frozen."""
        for layers in self.entries:
            for number in layers.groups:
                groups[number]["frozen_until"] = layers.until

    def count(self, elements: int, operations: int, model: nn.Module) -> None:
        """Take what is trainable in all, and find out how much of it each entry has.

        Args:
            elements: of the trainable parameters, those of the entries included.
            operations: of a token with the parameters.
        """
        self._all = elements, operations
        parameters = dict(canonical_state(model))
        multiplied: set[Tensor] = set()  # an embedding looks rows up
        for module in model.modules():
            if not isinstance(module, nn.Embedding):
                multiplied.update(module.parameters(recurse=False))
        for layers in self.entries:
            own = [parameters[name] for name in layers.names]
            layers.operations = 2 * sum(p.numel() for p in own if p in multiplied)

    # -- the prepared strategy --------------------------------------------------------------------

    def begin(self, strategy: Strategy, schedule: LRScheduler) -> None:
        """Freeze all entries of a prepared strategy. Collective: call on every rank.

        Raises:
            ConfigError: the schedule gives an entry another rate than its own.
        """
        self._strategy = strategy
        self._schedule = schedule
        if not self.entries:
            return

        for layers in self.entries:
            for number in layers.groups:
                rate = float(strategy.optimizer.param_groups[number]["initial_lr"])
                if layers.lr is not None and rate != layers.lr:
                    kind = type(schedule).__name__
                    rule = f"has no effect: {kind} sets the rate of every group itself; remove it"
                    raise self._problem(layers, rule, key="lr")
        groups = [number for layers in self.entries for number in layers.groups]
        strategy.set_trainable(groups, trainable=False)

    @property
    def trainable(self) -> int:
        """Return how many elements are trained now."""
        return self._all[0] - sum(layers.elements for layers in self._frozen())

    @property
    def operations(self) -> int:
        """Return the operations of a token with the parameters as they are trained now."""
        return self._all[1] - sum(layers.operations for layers in self._frozen())

    def _frozen(self) -> Iterator[FrozenLayers]:
        for layers in self.entries:
            if layers.is_frozen:
                yield layers

    def due(self, step: int) -> list[FrozenLayers]:
        """Return the entries that are frozen though their step has come."""
        return [layers for layers in self._frozen() if layers.at is not None and layers.at <= step]

    def named(self, patterns: Sequence[str]) -> list[FrozenLayers]:
        """Return the entries of which patterns name all parameters.

        Raises:
            LaunchError: there is none, or of one they name a part only.
        """
        for layers in self.entries:
            if list(patterns) == layers.patterns:
                return [layers]

        found = []
        for layers in self.entries:
            matching = [_matches([name], patterns) for name in layers.names]
            if all(matching):
                found.append(layers)
            elif any(matching):
                raise LaunchError(
                    f"run.unfreeze({listed(list(patterns))}) names a part of {layers.key} "
                    f"({layers.title}), which is unfrozen as a whole: "
                    "give the part an entry of its own"
                )
        if not found:
            known = "; ".join(layers.title for layers in self.entries) or "nothing"
            raise LaunchError(
                f"run.unfreeze({listed(list(patterns))}): the key unfreeze names {known}: name "
                "there what a run may unfreeze, since strategies divide it among the ranks before "
                "the first step; without `at` it stays frozen until run.unfreeze"
            )
        return found

    def unfreeze(self, layers: FrozenLayers, step: int, lr: float | None = None) -> None:
        """Train an entry's layers from the next step on. Collective: call on every rank.

        Args:
            step: optimizer steps done.
            lr: another rate than the config's, before it is scaled.

        Raises:
            LaunchError: gradients are there, or the schedule computes each rate from the one
                before, so that it would not follow another one.
        """
        if any(parameter.grad is not None for parameter in self._strategy.trainable):
            raise LaunchError(
                f"run.unfreeze: within step {step + 1}, whose gradients are there already; call it "
                "between steps, in on_step of a callback"
            )
        if lr is not None:
            self._set_rate(layers, self._scaled(lr))
            layers.given_lr = lr
        layers.unfrozen_at = step
        self._strategy.set_trainable(layers.groups, trainable=True)

    def _set_rate(self, layers: FrozenLayers, rate: float) -> None:
        schedule = self._schedule
        if not isinstance(schedule, LambdaLR):
            raise LaunchError(
                f"run.unfreeze(lr={rate:g}): {type(schedule).__name__} computes each rate from the "
                f"one before; give {layers.key} the lr in the config instead"
            )

        groups = self._strategy.optimizer.param_groups
        rates = list(schedule.get_last_lr())

        for number in layers.groups:
            schedule.base_lrs[number] = rate
            rates[number] = rate * schedule.lr_lambdas[number](schedule.last_epoch)
            groups[number]["initial_lr"] = rate
            if isinstance(groups[number]["lr"], Tensor):
                groups[number]["lr"].fill_(rates[number])
            else:
                groups[number]["lr"] = rates[number]

        set_schedule(schedule, schedule.last_epoch, rates)

    def text(self, layers: FrozenLayers) -> str:
        """Return the size of an entry's layers and their rate before the schedule, for people."""
        groups = self._strategy.optimizer.param_groups
        rates = dict.fromkeys(float(groups[number]["initial_lr"]) for number in layers.groups)
        shown = " and ".join(f"{rate:g}" for rate in rates)
        return f"{layers.elements:,} parameters, lr {shown}"

    def rates(self, rates: Sequence[Any]) -> Sequence[Any]:
        """Return the rates of the parameter groups, with 0 for those that are frozen."""
        if not self.entries:
            return rates
        frozen = {number for layers in self._frozen() for number in layers.groups}
        return [0.0 if number in frozen else rate for number, rate in enumerate(rates)]

    def facts(self) -> list[dict[str, Any]]:
        """Return what plan.json holds of the entries."""
        found = []
        for layers in self.entries:
            state = f"frozen until {layers.until}"
            if not layers.is_frozen:
                state = f"trained since step {layers.unfrozen_at}"

            text = f"{layers.title}: {self.text(layers)}, {state}"
            found.append(
                {
                    "layers": layers.patterns,
                    "parameters": layers.elements,
                    "at": layers.at,
                    "unfrozen_at": layers.unfrozen_at,
                    "text": text,
                }
            )
        return found

    # -- over a resume ----------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint keeps: which layers were unfrozen, and after which step."""
        kept = []
        for layers in self.entries:
            if not layers.is_frozen:
                kept.append(
                    {
                        "layers": layers.patterns,
                        "step": layers.unfrozen_at,
                        "lr": layers.given_lr,
                    }
                )
        return kept

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Unfreeze what was unfrozen, before weights and optimizer state are read. Collective."""
        for kept in state:
            for layers in self._frozen():
                if layers.patterns == kept["layers"]:
                    self.unfreeze(layers, kept["step"], kept["lr"])


def _names_of(model: nn.Module) -> dict[Tensor, list[str]]:
    """Return the names of each parameter; a shared one has several."""
    names: dict[Tensor, list[str]] = {}
    for name, tensor in canonical_state(model):
        if isinstance(tensor, nn.Parameter):
            names.setdefault(tensor, []).append(name)
    return names


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether a pattern fits one of a parameter's names, or a module that it is in."""
    for name in names:
        parts = name.split(".")
        paths = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        if any(fnmatchcase(path, pattern) for path in paths for pattern in patterns):
            return True
    return False


def _nothing_named(
    model: nn.Module,
    names: Mapping[Tensor, Sequence[str]],
    taken: set[Tensor],
    patterns: Sequence[str],
) -> str:
    """Return the rule that an entry without a parameter breaks."""
    if any(_matches(names[parameter], patterns) for parameter in taken):
        return "all of these are in entries before it; remove it"
    known = [path for path, _ in model.named_modules() if path]
    nearest = did_you_mean(patterns[0].removesuffix(".*"), known)
    return f"names no parameter of the model; {nearest}"
