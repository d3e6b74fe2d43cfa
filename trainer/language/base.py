"""The base of the language tasks: a model built without values, a tokenizer, documents."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..config.paths import LocalPath
from ..data.mixture import Mixed, mixed
from ..private.transformers import initializer_of
from ..task import Data, Pretrained, SavedPart, Task
from .adapters import (
    Adapter,
    adapter_part,
    add_adapter,
    set_lengths,
    started,
    with_start,
)
from .card import model_card
from .context import Group
from .loss import mean_loss, token_losses
from .model_files import CLASSIFIER, build_on_meta
from .packing import IGNORED
from .pretrained import configure, from_configuration
from .problems import setting_error
from .sources import Row, find_sources
from .tokens import Corpus, Encoder, Int64Array, load_tokenizer, padding_of, vocabulary_of
from .varlen import NAME, Whole
from .weighted_source import WeightedSource

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..run_plan import Plan

# For these values of ``attention`` transformers keeps packed documents apart by a mask. The others
# are flash kernels.
DENSE = (None, "sdpa", "eager", "flex_attention")
# The methods that compute with whole rows if a user writes them.
_STEPS = {
    "evaluation_step", "inputs", "log_probs", "losses", "prediction_step", "rows", "token_losses",
    "training_step", "weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LanguageTask(Task):
    """A task with a tokenizer and a transformers model, which is built without values.

    The settings are those of docs/fine_tuning.md.
    """

    card: ClassVar[tuple[str, str]]  # what the Hub calls such models, and the title
    scores_texts: ClassVar[bool] = False  # at the last token, which padding must not be
    rates: ClassVar[tuple[float, float]] = (2e-5, 2e-4)  # defaults, without an adapter and with
    has_documents: ClassVar[bool] = False  # whether its rows may be computed by documents

    model: LocalPath | None = None
    model_config: dict[str, Any] | None = None
    tokenizer: LocalPath | None = None
    new_tokens: list[str] | None = None
    adapter: Adapter | None = None
    attention: str | None = None
    ignore_tensors: str | list[str] | None = field(default=None, compare=False)
    cache_dir: LocalPath = "~/.cache/samecurve"
    data: LocalPath | list[LocalPath | WeightedSource]
    weight_by: Literal["rows", "tokens"] = "rows"
    evaluation: LocalPath | float | dict[str, LocalPath] | None = None

    # State, which ``keep`` changes.
    loaded: ClassVar[Any] = None  # the tokenizer
    plan: ClassVar[Any] = None
    processes: ClassVar[Whole] = Whole()  # that share rows
    told: ClassVar[dict[str, None]] = {}  # notices
    new: ClassVar[Collection[str]] = ()  # tensors that the files of the model lack
    stored: ClassVar[Any] = None  # finds these files

    def keep(self, **state: Any) -> None:
        """Keep values between calls. The dataclass is frozen."""
        vars(self).update(state)

    def __post_init__(self) -> None:
        """Take a mapping as an adapter, and the folder of an adapter as its start and its model.

        A YAML file gives an ``Adapter``, code may give a dict.
        """
        adapter = Adapter(**self.adapter) if isinstance(self.adapter, Mapping) else self.adapter
        adapter, model = started(adapter, self.model)
        self.keep(adapter=adapter, model=model)
        start = self.adapter_start
        if start and not self.tokenizer and Path(start, "tokenizer_config.json").is_file():
            self.keep(tokenizer=start)
        if isinstance(self.data, list):
            sources = [WeightedSource(**s) if isinstance(s, Mapping) else s for s in self.data]
            self.keep(data=sources)
        if adapter and adapter.dora and (adapter.quantize or not model):
            raise ValueError("adapter.dora: needs the weights of model, in 16 or 32 bits")
        if self.is_mixed and isinstance(self.evaluation, float):
            raise ValueError("evaluation: a mixture has no share to keep; name files")

    @property
    def is_mixed(self) -> bool:
        """Return whether ``data`` is a mixture of weighted sources."""
        return any(isinstance(source, WeightedSource) for source in self.data)

    @property
    def built_attention(self) -> str | None:
        """Return the attention that the model is built with. None: the choice of its class."""
        return None if self.has_documents and self.attention == NAME else self.attention

    @property
    def computes_parts(self) -> bool:
        """Return whether a process can compute a part of the tokens: by no method of a user."""
        steps = (getattr(self, name, self.begin) for name in _STEPS)
        return self.has_documents and all(s.__module__.startswith("trainer.") for s in steps)

    @property
    def adapter_start(self) -> str | None:
        """Return the folder that the adapter begins with, if there are both."""
        return self.adapter.start if self.adapter else None

    @property
    def quantize(self) -> str | None:
        """Return the format of the frozen weights, if they are quantized."""
        return self.adapter.quantize if self.adapter else None

    def fine_tuning_defaults(self) -> dict[str, Any]:
        if not self.model:
            return {}

        return {
            "lr": self.rates[self.adapter is not None],
            "weight_decay": 0.0,
            "schedule": "linear",
            "warmup_fraction": 0.03,
            "max_grad_norm": 1.0,
        }

    # -- data -------------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        if not self.computes_parts:
            super().begin(plan)
        size = plan.context_parallel
        processes = Group(size) if size > 1 else Whole()
        self.keep(plan=plan, processes=processes, has_mask=False)

    def data_of(
        self,
        read: Callable[[str, Any], Any],
        make: Callable[[Any, Int64Array], Any],
        collate: Callable[[Any], Any],
        augment: Callable[..., Any] | None = None,
    ) -> Data:
        """Return the data sets to train on and to measure on.

        ``read(key, value)`` returns all items that a setting names, and ``make(items, numbers)`` a
        data set of some of them.
        """

        def whole(key: str, value: Any, most: int | None = None) -> Any:
            items = read(key, value)
            return make(items, np.arange(len(items))[:most])

        given = self.evaluation
        if isinstance(given, float):
            # Every n-th item is kept for evaluation.
            items = read("data", self.data)
            kept = np.diff(np.floor(np.arange(len(items) + 1) * given)) > 0
            train = make(items, np.flatnonzero(~kept))
            evaluation = make(items, np.flatnonzero(kept))
        else:
            train = self._mixture(whole) if self.is_mixed else whole("data", self.data)
            evaluation = self.evaluated(partial(whole, "evaluation"))
        return Data(
            train=train,
            evaluation=evaluation,
            collate=collate,
            augment=augment,
            version=train.version,
        )

    def evaluated(self, make: Callable[[Any], Any]) -> Any:
        """Return the evaluation data that ``make`` returns for a value, or for each of several."""
        if isinstance(self.evaluation, Mapping):
            return {name: make(value) for name, value in self.evaluation.items()}
        return self.evaluation and make(self.evaluation)

    def _mixture(self, whole: Callable[..., Any]) -> Mixed:
        """Return the mixture of the sources. ``whole`` returns the data set of some paths."""
        sources: dict[str, Any] = {}
        for number, given in enumerate(self.data):
            source = WeightedSource(path=given) if isinstance(given, str) else given
            rows = whole("data", source.paths, source.max_samples)
            weight = source.weight
            if self.weight_by == "tokens":
                weight *= len(rows) / rows.token_count
            label = source.name or Path(source.paths[0].partition("@")[0]).stem
            if label in sources:
                label = f"{label}-{number}"
            sources[label] = (rows, weight, source.passes)
        mixture = mixed(sources)
        mixture.version = "-".join(rows.version for rows in mixture.sets)
        return mixture

    def load_tokenizer(self) -> Any:
        """Return the tokenizer. The first call loads the tokenizer, later calls do not."""
        if self.loaded is None:
            key = "tokenizer" if self.tokenizer else "model"
            tokenizer = load_tokenizer(getattr(self, key), key, self.new_tokens or ())
            if self.scores_texts:
                tokenizer.pad_token = padding_of(tokenizer)
            self.keep(loaded=tokenizer)
        return self.loaded

    def note(self, *lines: str) -> None:
        """Add lines to the notices of the banner. A line that is there already is not repeated."""
        self.keep(told=self.told | dict.fromkeys(lines))

    def notices(self) -> list[str]:
        return list(self.told)

    # -- model ------------------------------------------------------------------------------------

    def build_pretrained(self, auto_class: str, **options: Any) -> Any:
        """Build the pretrained model without its values. The arguments are of ``build_on_meta``."""
        # An adapter of a model with new tokens begins with the tokenizer of its folder.
        longer = self.new_tokens or self.adapter_start
        model, new, stored = build_on_meta(
            str(self.model),
            self.built_attention,
            self.cache_dir,
            auto_class,
            self.ignore_tensors or (),
            self.quantize,
            self.model_config,
            vocabulary_of(self.load_tokenizer()) if longer else 0,
            **options,
        )
        self.keep(new=new, stored=stored)
        return model

    def adapted(self, model: Any, task_type: str | None) -> Any:
        """Add the task's adapters to a model, and name the model's class in its configuration.

        Raises ``ConfigError`` if tokens have no embedding. A GPU would stop without a reason.
        """
        vocabulary = vocabulary_of(self.load_tokenizer())
        rows = model.get_input_embeddings().num_embeddings
        if vocabulary > rows:
            raise setting_error(
                "tokenizer",
                self.tokenizer or self.model,
                f"has tokens up to {vocabulary - 1}, and the model's embedding has {rows} rows; "
                "name added tokens in new_tokens",
            )
        model.config.architectures = [type(model).__name__]
        if not self.adapter:
            return model
        if self.model_config:
            self.note("model_config: the file of the adapter has none; set the keys to load it too")
        adapted = add_adapter(model, self.adapter, task_type)
        if self.adapter.dora and not self.adapter_start:
            set_lengths(adapted, self.stored(adapted))
        return adapted

    def build_classifier(self, **options: Any) -> Any:
        """Build the pretrained model with a new last layer, which scores the end of a text."""
        model = self.build_pretrained(CLASSIFIER, **options)
        configure(model, pad_token_id=self.load_tokenizer().pad_token_id)
        return model

    def pretrained(self, model: nn.Module) -> Sequence[Pretrained]:
        stored = self.stored(model) if self.stored else ()
        return with_start(model, stored, self.adapter_start)

    def saved_part(self, model: nn.Module) -> SavedPart | None:
        return adapter_part(model, self.model_config, self.new) if self.adapter else None

    def for_model(self, folder: Path) -> LanguageTask | None:
        """Return the task with the pretrained model of a folder, without an adapter.

        None for a folder with an adapter, which is loaded into the model of this task.
        """
        if not (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
            return None
        scratch: dict[str, Any] = {"config": None} if hasattr(self, "config") else {}
        return replace(self, model=str(folder), adapter=None, **scratch)

    def initialize(self, model: Any, module: Any) -> None:
        if hasattr(module, "reset_lora_parameters"):
            for adapter in module.r:
                # True: one of the matrices is zero, so that a new adapter changes no output.
                module.reset_lora_parameters(adapter, True)
            return
        # A vision part and a reference have their own first values.
        owners = [
            part for part in model.modules() if initializer_of(part) and module in part.modules()
        ]
        super().initialize([model, *owners][-1], module)

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, *self.card)

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer. The configurations are written with the model."""
        self.load_tokenizer().save_pretrained(directory)


@dataclass(frozen=True, kw_only=True)
class TokenTask(LanguageTask):
    """A task that predicts tokens of documents.

    A batch has ``labels``: the token to predict at each position, or ``IGNORED``.
    """

    counts_tokens: ClassVar[bool] = True

    config: dict[str, Any] | None = None
    bad_rows: Literal["leave_out"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model is None) == (self.config is None) or (self.config and not self.tokenizer):
            raise ValueError(
                "give model (a folder or a name), or config (model_type and sizes) and tokenizer"
            )
        if self.config and (self.model_config or self.quantize):
            raise ValueError("config: has no files, so neither model_config nor adapter.quantize")

    @abstractmethod
    def encoder(self, rows: Iterator[Row]) -> Encoder:
        """Return the encoder of the rows of a source, which the first rows decide."""

    def tokenized(self, key: str, names: str | list[str]) -> Corpus:
        """Return all documents that the setting ``key`` names, as tokens."""
        sources = find_sources(names, key)
        encoders = [self.encoder(row for _, row in source.read()) for source in sources]
        for columns in (encoder.columns for encoder in encoders):
            if columns.kind != "text":
                self.note(f"{key}: columns {', '.join(columns.names)}")
        corpus = Corpus.prepare(sources, encoders, self.cache_dir, key)
        self.note(*corpus.notices)
        return corpus

    def build(self, auto_class: str, **defaults: Any) -> Any:
        """Build the model of the files or of the configuration, without values.

        ``defaults`` are the values of keys that ``config`` does not set.
        """
        if self.config is None:
            return self.build_pretrained(auto_class)
        defaults["vocab_size"] = vocabulary_of(self.load_tokenizer())
        return from_configuration(self.config, self.built_attention, defaults, auto_class)

    @abstractmethod
    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments that the model is called with."""

    def labels(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the labels of the positions of ``inputs``."""
        if "boundaries" in batch:
            return self.processes.tokens(batch, "labels")
        return batch["labels"]  # type: ignore[no-any-return]

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = self.inputs(batch), self.labels(batch)
        if self.processes.size == 1:
            return mean_loss(model, inputs, labels)
        own = (labels != IGNORED).sum()
        # A part without a target has 0 times the loss of false targets. A mean of nothing is NaN.
        loss = mean_loss(model, inputs, labels.where(own > 0, 0))
        # The mean over the processes is the mean over all targets.
        return loss * (self.processes.size * own / self.weight(batch))

    def weight(self, batch: Any) -> Tensor | float:
        return (batch["labels"] != IGNORED).sum()  # type: ignore[no-any-return]

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        # Each process that shares the rows counts all tokens.
        tokens = self.weight(batch) / self.processes.size
        return {**super().evaluation_step(model, batch), "tokens": (tokens, None)}

    def prediction_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the mean loss over the targets of each row, and the number of these targets."""
        losses = self.token_losses(model, batch)
        tokens = (batch["labels"] != IGNORED).sum(-1)
        return {"loss": losses.double().sum(-1) / tokens, "tokens": tokens}

    def token_losses(self, model: nn.Module, batch: Any, **which: Any) -> Tensor:
        """Return the loss of each position, (rows, tokens).

        ``which`` are further arguments of the model.
        """
        losses = token_losses(model, {**self.inputs(batch), **which}, self.labels(batch))
        if "boundaries" not in batch:
            return losses
        whole = losses.new_zeros(batch["labels"].numel())
        whole = whole.index_copy(0, self.processes.places(batch), losses[0])
        return self.processes.sum(whole).view_as(batch["labels"])

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        # exp of the mean over all tokens. A mean of the batches' perplexities would depend on how
        # documents are cut into batches. exp(710) is larger than any float.
        return {**metrics, "perplexity": math.exp(min(metrics["loss"], 700.0))}
