"""Transformers models built without values, on the meta device, and where in their files the values stand.

So no process holds a model whole: it is divided first, and each process reads its own parts of the files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.cache import prepare_once
from ..strategies.tensors import canonical_state
from ..task import Pretrained, Task

if TYPE_CHECKING:
    from torch import nn

VOCABULARY = 1_024  # of a small copy


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The files of a model.

    Args:
        folder: with safetensors files.
        names: what tensors are called in the model, by their names in the files.
    """

    folder: Path
    names: dict[str, str]

    def of(self, model: Any) -> Pretrained:
        """Return what fills a model that may have got adapters since: what the files lack begins anew."""
        own = {_bare(name): name for name, _ in canonical_state(model)}
        names = {stored: own[name] for stored, name in self.names.items() if name in own}
        found = {id(tensor) for name, tensor in canonical_state(model) if name in names.values()}
        new = [name for name, tensor in canonical_state(model) if id(tensor) not in found]
        return Pretrained(folder=self.folder, names=names, new=new)


@dataclass(frozen=True, kw_only=True)
class FilledLater(Task):
    """A task whose transformers model may be built without values: how it gets them.

    Args:
        memory: what it remembers: the tokenizer, the files of the model, counts of its data.
    """

    memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def pretrained(self, model: nn.Module) -> Pretrained | None:
        stored: Stored | None = self.memory.get("stored")
        return None if stored is None else stored.of(model)

    def initialize(self, model: nn.Module, module: nn.Module) -> None:
        layer: Any = module
        if not hasattr(module, "reset_lora_parameters"):
            return super().initialize(model, module)
        for adapter in layer.lora_A:
            layer.reset_lora_parameters(adapter, True)  # zeros in the second matrix: at first an adapter adds nothing


def _bare(name: str) -> str:
    """Return the name that a tensor had before adapters were added."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def stored_names(model: Any, folder: Path) -> dict[str, str] | None:
    """Return what the tensors of a folder are called in the model, by their names in the files.

    None where values have to be converted (experts that become one tensor), or no file is a safetensors file: then a
    whole model must be loaded.
    """
    from safetensors import safe_open
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    found = get_model_conversion_mapping(model)
    renamings = [one for one in found if isinstance(one, WeightRenaming)]
    converters: list[Any] = [one for one in found if not isinstance(one, WeightRenaming)]
    state, names = model.state_dict(), {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118  (no mapping)
                name, converter = rename_source_key(stored, renamings, converters, model.base_model_prefix, state)
                if converter is not None:
                    return None
                names[stored] = name
    return names or None


def missing_names(model: Any, names: dict[str, str]) -> list[str]:
    """List the tensors of a model that no file holds, under none of their names."""
    tensors = [*canonical_state(model)]
    there = {id(tensor) for name, tensor in tensors if name in set(names.values())}
    return [name for name, tensor in tensors if id(tensor) not in there]


def converted(file: Path, cache_dir: str, load: Callable[[], Any]) -> Path:
    """Return a folder with the safetensors files of a GGUF file, made once on each machine from what ``load`` gives."""
    facts = file.stat()
    content = ["gguf", str(file.resolve()), facts.st_size, facts.st_mtime_ns]
    return prepare_once(cache_dir, content, lambda folder: load().save_pretrained(folder))


def small_copy(model: Any) -> Any:
    """Build a model of the same class with random weights, a few layers and words: something to try out.

    It has a layer of each kind that the configuration names.
    """
    import torch

    config = copy.deepcopy(model.config)
    kinds = list(getattr(config, "layer_types", None) or ())
    layers = min(2, config.num_hidden_layers) if not kinds else max(kinds.index(kind) + 1 for kind in set(kinds))
    config.num_hidden_layers = layers
    if "layer_types" in vars(config):  # others derive it
        config.layer_types = kinds[:layers]
    config.vocab_size = min(config.vocab_size, VOCABULARY)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, key, None)
    with torch.random.fork_rng(devices=[]):
        return type(model)._from_config(config, attn_implementation=config._attn_implementation)
