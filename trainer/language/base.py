"""What the tasks of this room share: a model that is filled later, a tokenizer, and a loss over
tokens.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..config.annotations import LocalPath
from ..config.plain import plain
from ..config.validate import Validator
from ..errors import ConfigError, Origin
from ..task import Pretrained, Task
from .adapters import Adapter
from .columns import Columns
from .meta_model import Stored
from .packing import IGNORED, Numbers
from .pretrained import build_blank
from .sources import Row, find_sources, held_out
from .templates import ChatTemplate
from .tokens import BadRows, Corpus, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

Documents = tuple[
    str, Corpus, Numbers
]  # the setting that names them, all of its corpus, which of these are meant


@dataclass(frozen=True, kw_only=True)
class LanguageTask(Task):
    """A task whose transformers model may be built without values: how it gets them, and its
    tokenizer.

    Args:
        model: a folder of safetensors, a folder with a GGUF file, or a name on the Hub.
        tokenizer: a folder, a tokenizer.json, a name on the Hub; by default the model's.
        adapter: low-rank adapters, of which alone is learnt; {} for the defaults.
        attention: as transformers calls it: sdpa, eager, flash_attention_2; by default what the
            model's class takes.
        ignore_tensors: patterns of tensors in the model's files that the model is not to have, such
            as ``mtp.*``.
        cache_dir: for tokens, and for what a GGUF file is converted to.
        memory: what it remembers: the tokenizer, the files of the model, counts of its data.
    """

    model: LocalPath | None = None
    tokenizer: LocalPath | None = None
    adapter: Adapter | None = None
    attention: str | None = None
    ignore_tensors: str | list[str] | None = field(default=None, compare=False)
    cache_dir: LocalPath = "~/.cache/samecurve"
    memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hold what code gives to the rules of a YAML: a mapping stands for settings, a path for
        text.
        """
        ours = next(
            cls for cls in type(self).__mro__ if cls.__module__.startswith(f"{__package__}.")
        )
        given = {
            setting.name: plain(getattr(self, setting.name))
            for setting in fields(ours)
            if setting.init
        }
        check = Validator(
            lambda key: Origin("language task", key=".".join(("task_settings", *key)))
        )
        for name, value in check.settings(type(self), given).items():
            object.__setattr__(self, name, value)
        if check.problems:
            raise ConfigError(check.problems)

    def fine_tuning_defaults(self) -> dict[str, Any]:
        if self.model is None:
            return {}
        return {
            "lr": 2e-5 if self.adapter is None else 2e-4,
            "weight_decay": 0.0,
            "schedule": "linear",
            "warmup_fraction": 0.03,
            "max_grad_norm": 1.0,
        }

    def load_tokenizer(self) -> Any:
        """Return the tokenizer, loaded on the first call."""
        if "tokenizer" not in self.memory:
            key, name = ("tokenizer", self.tokenizer) if self.tokenizer else ("model", self.model)
            self.memory["tokenizer"] = load_tokenizer(str(name), key)
        return self.memory["tokenizer"]

    def note(self, *lines: str) -> None:
        """Keep lines for the banner, each once."""
        known = self.memory.setdefault("notices", [])
        known.extend(line for line in lines if line not in known)

    def notices(self) -> list[str]:
        return list(self.memory.get("notices", ()))

    def vocabulary(self) -> int:
        """Return one more than the largest token."""
        return 1 + int(max(self.load_tokenizer().get_vocab().values()))

    def build_pretrained(self, auto_class: str, **options: Any) -> Any:
        """Build the model that is named, without values where they stand in safetensors files.

        Args:
            auto_class: of transformers.
            options: of its configuration.
        """
        patterns = (
            [self.ignore_tensors]
            if isinstance(self.ignore_tensors, str)
            else self.ignore_tensors or []
        )
        model, self.memory["stored"] = build_blank(
            str(self.model), self.attention, self.cache_dir, auto_class, patterns, **options
        )
        return model

    def pretrained(self, model: nn.Module) -> Pretrained | None:
        stored: Stored | None = self.memory.get("stored")
        return None if stored is None else stored.of(model)

    def initialize(self, model: nn.Module, module: nn.Module) -> None:
        layer: Any = module
        if not hasattr(module, "reset_lora_parameters"):
            return super().initialize(model, module)
        for adapter in layer.lora_A:
            layer.reset_lora_parameters(
                adapter, True
            )  # zeros in the second matrix: at first an adapter adds nothing

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer; the configurations are written with the model."""
        self.load_tokenizer().save_pretrained(directory)


@dataclass(frozen=True, kw_only=True)
class TokenTask(LanguageTask):
    """A task that predicts tokens of documents; a batch has ``labels``, a token or ``IGNORED`` for
    each position.

    Args:
        data: what to learn from: a file, a folder, a pattern, hf:NAME, or a list of these
            (``sources.py``).
        evaluation: what to measure on, named in the same way; or the share of the documents of
            ``data`` that is kept for it, such as 0.05.
        config: instead of ``model``, for a start from scratch: ``model_type`` and keys of that
            configuration.
        text_column: of rows with columns, what is learnt.
        bad_rows: ``leave_out`` goes on without rows that cannot be learnt from; by default the
            first one ends the run.
    """

    counts_tokens: ClassVar[bool] = True

    data: LocalPath | list[LocalPath]
    evaluation: LocalPath | float | None = None
    config: dict[str, Any] | None = None
    text_column: str = "text"
    bad_rows: BadRows = (
        None  # so that runs of before the setting go on: they compare as if they had it
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model is None) == (self.config is None):
            raise ValueError(
                "give one of model (a folder or a name) and config (model_type and sizes)"
            )
        if self.config is not None and self.tokenizer is None:
            raise ValueError(
                "tokenizer: a model from scratch has none of its own; name a folder or a tokenizer.json"
            )
        if isinstance(self.evaluation, float) and not 0 < self.evaluation < 1:
            raise ValueError(
                f"evaluation: {self.evaluation}: a share of the documents is between 0 and 1"
            )

    def columns(self, row: Row | None) -> tuple[Columns, ChatTemplate | None]:
        """Return what is learnt of rows, and what writes those that are conversations.

        Args:
            row: the first one; None: there is none.
        """
        return Columns(text=self.text_column), None

    def documents(self) -> tuple[Documents, Documents | None]:
        """Return the documents to learn from and those to measure on, as tokens."""

        def corpus(key: str, names: str | list[str]) -> tuple[Corpus, Numbers]:
            sources = find_sources(names, key)
            row = next((row for source in sources for _, row in source.read()), None)
            columns, template = self.columns(row)
            tokenizer = self.load_tokenizer()
            found = Corpus.prepare(
                sources, columns, tokenizer, template, self.cache_dir, key, self.bad_rows
            )
            plain = columns == Columns(text=self.text_column)
            self.note(*([] if plain else [f"{key}: {columns}"]), *found.notices)
            return found, np.arange(len(found.ends))

        train, numbers = corpus("data", self.data)
        if isinstance(self.evaluation, float):
            kept = np.array(held_out(len(numbers), self.evaluation))
            return ("data", train, numbers[~kept]), ("evaluation", train, numbers[kept])
        evaluation = (
            None
            if self.evaluation is None
            else ("evaluation", *corpus("evaluation", self.evaluation))
        )
        return ("data", train, numbers), evaluation

    @abstractmethod
    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the model is called with."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        from .loss import mean_loss

        return mean_loss(model, self.inputs(batch), batch["labels"])

    def weight(self, batch: Any) -> Tensor:
        count: Tensor = (batch["labels"] != IGNORED).sum()
        return count

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        tokens = self.weight(batch)
        return {
            "loss": (self.training_step(model, batch) * tokens, tokens),
            "tokens": (tokens, None),
        }

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        # exp of the mean over all tokens; a mean of the batches' perplexities would depend on how
        # they are cut.
        return {
            **metrics,
            "perplexity": math.exp(min(metrics["loss"], 700.0)),
        }  # exp(710) is no float any more
