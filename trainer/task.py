"""A task, the class that users write: data, model and loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from .metrics import Metric
    from .run_plan import Plan


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a task: map-style data sets (``len`` and indexing by an int), or streams
    (iteration only).

    Args:
        train: items to train on.
        evaluation: items to measure on, or None. Or several sets by name, each a data set, a stream
            or an ``EvaluationSet``: ``{"clean": ..., "noisy": ...}``. Their values are
            ``eval/clean/loss`` and so on, those of a single set ``eval/loss``.
        collate: turns a list of items into a batch. None for torch's ``default_collate``.
        augment: ``augment(item, generator) -> item``, for training only. The numbers of the
            generator depend on (seed, epoch, sample) alone, so they are the same on every layout
            and number of workers.
        version: text that changes with the content of ``train`` (a hash, a revision), or empty.
            Ranks must have the same version, and so must a resumed run. Without a version some
            samples are compared.
    """

    train: Any
    evaluation: Any = None
    collate: Callable[[Sequence[Any]], Any] | None = None
    augment: Callable[[Any, Generator], Any] | None = None
    version: str = ""


@dataclass(frozen=True)
class EvaluationSet:
    """A data set to measure on, with the settings that differ from other sets.

    Args:
        items: a data set or a stream.
        every: steps such as 100, or epochs such as ``"1/4 epoch"``. By default ``eval_every`` of
            the config. All sets are measured at the end of training as well.
        collate: turns a list of items into a batch. By default ``Data.collate``.
        evaluation_step: ``evaluation_step(model, batch)``, as of ``Task``. By default the task's.
        build_metrics: as of ``Task``. By default the task's torchmetrics. A set with its own
            ``evaluation_step`` has those of them that the step names.
    """

    items: Any
    _: KW_ONLY
    every: int | str | None = None
    collate: Callable[[Sequence[Any]], Any] | None = None
    evaluation_step: Callable[[nn.Module, Any], Mapping[str, Any]] | None = None
    build_metrics: Callable[[], Mapping[str, Metric]] | None = None


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The files with the values of a model that was built on the meta device.

    Args:
        folder: with safetensors files, of which each rank reads its own parts.
        names: the names of tensors in the model, by their names in the files. The others have equal
            names.
        new: parameters that do not come from the files (a new head): they have values, or
            ``initialize`` gives them their first values.
        part: the submodule to which the files belong, in which ``names`` and ``new`` are names.
            Empty for the whole model.
        left_out: tensors of the files, by their names there, that the model lacks.
    """

    folder: str | Path
    names: Mapping[str, str] = field(default_factory=dict)
    new: Collection[str] = ()
    part: str = ""
    left_out: Collection[str] = ()

    def in_model(self, name: str) -> str:
        """Return the name in the whole model of a tensor of the part."""
        return within(self.part, name)


@dataclass(frozen=True, kw_only=True)
class SavedPart:
    """The part of a model that checkpoints and the exported model hold.

    The rest of the model is frozen, and ``build_model`` builds it again.

    Args:
        file: the name of the exported file.
        names: the name of each tensor in that file, by its name in the model.
        save_config: writes the configuration files into the folder of the exported file. None: the
            configuration of the model is written.
        load: returns the model of that folder as users load it. Its logits are compared with those
            of the trained model before the folder is published.
    """

    file: str
    names: Mapping[str, str]
    save_config: Callable[[Path], None] | None = None
    load: Callable[[Path], nn.Module] | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, model and loss. Subclass ``Task`` as a frozen dataclass, whose fields are the settings.

    The same task runs in a single process and on many GPUs: nothing here knows the layout.
    ``build_data`` and ``build_model`` are called once on every rank, under the same seed.

    Attributes:
        counts_tokens: whether ``weight`` counts tokens. Speed is then also given in tokens a
            second, computed tokens (``computed_tokens``) and trained tokens.
        exported: the submodule that is the product, such as the policy beside a frozen reference.
            Empty: the whole model is. The exported model has the names and the configuration of
            the submodule. Frozen parameters beside the submodule are in no checkpoint:
            ``build_model`` or ``pretrained`` gives them again, and a checksum tells a change.
            Called with the inputs of the submodule alone, the model returns its outputs.
    """

    counts_tokens: ClassVar[bool] = False
    exported: ClassVar[str] = ""

    def fine_tuning_defaults(self) -> Mapping[str, Any]:
        """Return defaults of config keys for a task that starts from pretrained weights.

        They apply to keys that neither the config file nor the command line nor a launch file sets.
        Banner, plan.json and ``--print_config`` show them. They do not apply to a ``TrainConfig``
        made in code, which does not tell set values from defaults.
        """
        return {}

    def begin(self, plan: Plan) -> None:
        """Take note of the plan, before ``build_data``. Collective.

        A task that can compute a part of the tokens of its rows accepts ``plan.context_parallel``.
        Then ``training_step`` has the same batch on all processes of a group, and the mean of their
        losses is the loss of the batch.
        """
        if plan.context_parallel > 1:
            rule = "must be 1: the task computes whole rows"
            raise plan.origin("context_parallel").error(rule, plan.context_parallel)

    def build_data(self) -> Data:
        """Build the data sets."""
        raise NotImplementedError("Task.build_data")

    def build_model(self) -> nn.Module:
        """Build the model on the CPU, with initial or pretrained weights.

        Trainable weights are kept in float32. A model that no process can hold whole is built
        without values, under ``with torch.device("meta")``. Such a model is divided over the ranks
        first, and then filled by ``pretrained`` or ``initialize``.
        """
        raise NotImplementedError("Task.build_model")

    def pretrained(self, model: nn.Module) -> Pretrained | Sequence[Pretrained] | None:
        """Return the files of the values of a model on the meta device, or those of each part.

        None if ``initialize`` draws the values.
        """
        return None

    def initialize(self, model: nn.Module, module: nn.Module) -> None:
        """Give the parameters and buffers of a module, without submodules, their first values.

        For a model on the meta device. Called on modules from the inside out, under seeds that are
        the same on every layout. By default the module's initialization in transformers or torch.
        """
        from .private.torch import RESET_METHODS
        from .private.transformers import initializer_of

        draw = initializer_of(model)
        if draw:
            draw(module)
            return
        for name in RESET_METHODS:
            reset: Any = getattr(module, name, None)
            if reset:
                reset()
                return

    def held_in_evaluation(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the modules that stay in evaluation mode while the model trains.

        For a frozen part whose dropout is off, or a BatchNorm that keeps its statistics::

            def held_in_evaluation(self, model):
                return [model.backbone]

        Their submodules stay as well. All other modules train in training mode, also those of
        ``from_pretrained``, which leaves a model in evaluation mode. If only some layers are in
        evaluation mode, the task must have this method. ``[]`` trains all in training mode.
        """
        return ()

    def saved_part(self, model: nn.Module) -> SavedPart | None:
        """Return the part of the model that is saved. None for the whole model.

        Called once, with the model of ``build_model``, or with the submodule ``exported``.
        """
        return None

    def notices(self) -> Sequence[str]:
        """Return lines for the banner, once data and model are built."""
        return ()

    def training_step(
        self, model: nn.Module, batch: Any
    ) -> Tensor | Mapping[str, Tensor] | tuple[Tensor | Mapping[str, Tensor], Mapping[str, Any]]:
        """Return the mean loss over the items of a micro-batch, as a scalar tensor.

        ``weight`` returns the number of these items. A loss of parts with items of their own
        returns the mean of each part by name. The sum of the parts is trained and logged as
        ``loss``, and each part is logged as ``loss/<name>``.

        ``(loss, {name: value})`` reports more: a number is a mean over the same items, and 1-D
        tensors and ``(sum, weight)`` have the meaning of ``evaluation_step``. Logged steps show the
        means over the global batch.
        """
        raise NotImplementedError("Task.training_step")

    def weight(self, batch: Any) -> Tensor | float | Mapping[str, Tensor | float]:
        """Count the items of a batch that the mean of ``training_step`` is over.

        By default the number of examples. A language model returns the number of unmasked target
        tokens, and sets ``counts_tokens``. For a loss with class weights, which torch divides by
        their sum: ``class_weights[labels].sum()``. The batch is still on the CPU.

        A mapping counts the items of each part of a loss. A detector has a mean over all queries,
        and a mean over all boxes (in a micro-batch a sum over ``max(boxes, 1)``)::

            def weight(self, batch):
                return {"classes": 100 * len(batch["image"]), "boxes": len(batch["boxes"])}
        """
        return batch_size(batch)

    def computed_tokens(self, batch: Any) -> int:
        """Count the tokens of a batch that go through the model, trained on or not.

        Tokens a second and MFU count these. Called if ``counts_tokens`` is set, with a batch on the
        CPU. By default the positions of ``input_ids``, padding included, or else ``weight``.
        """
        if isinstance(batch, Mapping) and "input_ids" in batch:
            return int(batch["input_ids"].numel())
        weight: Any = self.weight(batch)
        return int(weight)

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return the metrics of a batch by name: 1-D per-example values, or ``(sum, weight)``.

        Reported as ``eval/<name>`` = sum of values / sum of weights over all examples on all ranks.
        Sums may have a shape (per-class values: ``eval/<name>/0`` ...), ``(sum, None)`` stays a
        sum, and a name of ``build_metrics`` takes the arguments of ``update``: ``{"auroc": (scores,
        labels)}``. Values ``loss/<name>`` add up to ``loss``.
        """
        from .data.batches import by_part
        from .losses import weighted

        return weighted(self.training_step(model, batch), by_part(self.weight(batch)))

    def prediction_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return the columns to write of each example of a batch, by name.

        For ``trainer evaluate --predictions FILE``. A value is a tensor or an array whose first
        dimension is the examples, or a list with an entry for each example::

            def prediction_step(self, model, batch):
                logits = model(batch["image"])
                return {"label": batch["label"], "predicted": logits.argmax(-1)}
        """
        raise NotImplementedError("Task.prediction_step")

    def build_metrics(self) -> Mapping[str, Metric]:
        """Make torchmetrics by name, anew for each evaluation.

        ``evaluation_step`` returns the arguments of their ``update``. Their states are gathered
        over all ranks once, after the last batch.
        """
        return {}

    def summarize(self, metrics: dict[str, float]) -> Mapping[str, float]:
        """Return the metrics to report, from the metrics over all examples of a set.

        The place for a metric that is derived from a mean. A perplexity is exp of the mean loss,
        not the mean of exp: ``{**metrics, "perplexity": exp(metrics["loss"])}``.
        """
        return metrics

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        """Build the optimizer, with the learning rate ``plan.lr``.

        By default the config's, with two groups: weights decay, biases and norms (below 2-D) do
        not. Without ``weight_decay`` a single group.
        """
        from .optim.optimizers import build_optimizer

        return build_optimizer(model, plan)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the task's state for a checkpoint: JSON with tensors, the same on every rank.

        Called once before the first step as well: a state that cannot be saved ends the run there.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state_dict``. Called before training continues."""

    def build_schedule(
        self, optimizer: Optimizer, plan: Plan, total_steps: int
    ) -> LRScheduler | None:
        """Build a schedule, which is stepped once per optimizer step. None for the config's."""
        return None

    def save_extras(self, directory: Path) -> None:
        """Write files beside an exported model (a tokenizer). Called on the main process."""

    def for_model(self, folder: Path) -> Task | None:
        """Return this task with the model of a folder, which ``trainer evaluate FOLDER`` measures.

        By default None: ``build_model`` gives the model, and the folder's safetensors files the
        values by name. A task that reads models of many forms returns a copy with another setting.
        """
        return None

    def model_card(self, run: Mapping[str, Any]) -> str:
        """Return the ``README.md`` of an exported model. Empty for none.

        Called on the main process.

        Args:
            run: the plan as in plan.json with ``versions`` and ``machine``, and until now ``step``,
                ``samples``, ``last_evaluation``, and ``spent``: ``tokens`` (0 if examples are
                counted) and ``seconds``.
        """
        return ""


def within(part: str, name: str) -> str:
    """Return the name in the whole model of a tensor of a submodule."""
    return f"{part}.{name}" if part else name


def sources_of(task: Task, model: nn.Module) -> list[Pretrained]:
    """Return the files of a model on the meta device. Empty if the task draws all values."""
    given = task.pretrained(model) or ()
    return [given] if isinstance(given, Pretrained) else list(given)


def new_names(sources: Iterable[Pretrained]) -> set[str]:
    """Return the names in the model of the parameters that no file of these folders has."""
    return {source.in_model(name) for source in sources for name in source.new}


def own_optimizer(task: Task) -> str | None:
    """Return the method by which a task builds the optimizer. None for the config's optimizer."""
    return _own_method(task, "build_optimizer")


def own_schedule(task: Task) -> str | None:
    """Return the method by which a task builds the schedule. None for the config's schedule."""
    return _own_method(task, "build_schedule")


def _own_method(task: Task, name: str) -> str | None:
    method = getattr(type(task), name)
    if method is getattr(Task, name):
        return None
    return f"{method.__module__}:{method.__qualname__}"


def computed_tokens(task: Task, batches: Iterable[Any]) -> float:
    """Count the tokens of some batches that go through the model. 0 if the task counts examples."""
    return float(sum(map(task.computed_tokens, batches))) if task.counts_tokens else 0.0


def batch_size(batch: Any) -> int:
    """Count the examples in a batch: the first dimension of its first tensor.

    Raises:
        TypeError: the batch holds no tensor. Override ``Task.weight``.
    """
    from .private.torch import leaves_of

    parts = dict(batch) if isinstance(batch, Mapping) else batch  # torch knows no other mappings
    for leaf in leaves_of(parts):
        if getattr(leaf, "ndim", 0):
            return int(leaf.shape[0])
    raise TypeError(
        f"no tensor with a batch dimension in a {type(batch).__name__}. Override Task.weight"
    )
