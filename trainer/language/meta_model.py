"""Models of transformers on the meta device, without values, and the files that hold the values.

So no process ever has the whole model in memory: the model is sharded first, and each process reads
its own parts of the files.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..checkpoint.ranges import of_model_folder
from ..data.cache import prepare_once
from ..private.transformers import attention_of, model_from_config
from ..strategies.tensors import canonical_state
from ..task import Pretrained
from ..text import listed
from .problems import setting_error

FORMAT = 2  # raise it when the same files are converted into others
SMALL_VOCABULARY = 1_024  # of a small copy, at most


class Located(NamedTuple):
    """A tensor in a file.

    Args:
        path: of the file.
        stored: its name in the file.
        name: its name in the model. Some stored tensors become one of the model (experts).
        pattern: of the converter that makes the model's tensor; None: it is stored as it is.
    """

    path: Path
    stored: str
    name: str
    pattern: str | None

    def read(self) -> Any:
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor(self.stored)


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """The files with the values of a model.

    Args:
        folder: with safetensors files.
        names: of tensors in the model, by their names in the files.
        unused: tensors of the files that the model has no place for, as they would be called in it.
        ignored: patterns of tensors of the files that the model may lack.
    """

    folder: Path
    names: dict[str, str]
    unused: list[str]
    ignored: Sequence[str] = ()

    def for_model(self, model: Any) -> Pretrained:
        """Return which tensors of a model are in the files, and which are new.

        The model may have got adapters since it was built: these are new. So are weights in 4 bits,
        which were made from the files already.

        Raises:
            ConfigError: a tensor of the files is not found in the model any more.
        """
        tensors = dict(canonical_state(model))
        name_in_model = {bare_name(name): name for name in tensors}
        names, lost = {}, []
        for stored, name in self.names.items():
            if name in name_in_model:
                names[stored] = name_in_model[name]
            elif not matches(name, self.ignored):
                lost.append(name)
        if lost:
            rule = (
                f"its files hold {listed(sorted(lost))}, which is not found in the model any more "
                "since it was changed or got adapters; name it in task_settings.ignore_tensors"
            )
            raise setting_error("model", str(self.folder), rule)

        # By identity, since one tensor may have several names in the model.
        in_files = {id(tensors[name]) for name in names.values()}
        new = [
            name
            for name, tensor in tensors.items()
            if id(tensor) not in in_files or is_quantized(tensor)
        ]
        return Pretrained(folder=self.folder, names=names, new=new)

    def keep_precision(self, model: Any) -> None:
        """Change tensors of a model to the dtype of the files, if its own would round them."""
        store, _ = of_model_folder(self.folder, self.names)
        for name, tensor in canonical_state(model):
            if tensor.is_floating_point() and name in store.names("parameter"):
                dtype = torch.promote_types(tensor.dtype, store.dtype("parameter", name))
                tensor.data = tensor.data.to(dtype)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a tensor's name matches one of some patterns, such as ``mtp.*``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_quantized(tensor: Any) -> bool:
    """Return whether a tensor of a model is a weight in 4 bits."""
    return hasattr(tensor, "quant_state")


def bare_name(name: str) -> str:
    """Return the name that a tensor had before adapters wrapped its layer."""
    parts = name.removeprefix("base_model.model.").split(".")
    return ".".join(part for part in parts if part != "base_layer")


# -- finding and converting -----------------------------------------------------------------------


def find_stored(
    model: Any, folder: Path, cache_dir: str, ignored: Sequence[str] = ()
) -> StoredWeights:
    """Find the files with the values of a model.

    If tensors have to be converted (a tensor for each expert becomes one for all), the converted
    tensors are written to a folder of ``cache_dir`` once per machine, one at a time.

    Args:
        ignored: patterns of tensors of the files that the model may lack.

    Raises:
        ConfigError: the files hold different values for one tensor of the model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    conversions = get_model_conversion_mapping(model)
    renamings = [item for item in conversions if isinstance(item, WeightRenaming)]
    converters = [item for item in conversions if not isinstance(item, WeightRenaming)]

    located = list(_locate_tensors(model, folder, renamings, converters))
    tensors = dict(canonical_state(model))
    unused = sorted({tensor.name for tensor in located if tensor.name not in tensors})
    used = [tensor for tensor in located if tensor.name in tensors]
    names = {tensor.stored: tensor.name for tensor in used}
    if any(tensor.pattern for tensor in used):
        folder = _converted_folder(model, folder, used, converters, cache_dir)
        names = {name: name for name in of_model_folder(folder)[1]}

    first_of: dict[int, Located] = {}
    for tensor in used:
        first = first_of.setdefault(id(tensors[tensor.name]), tensor)
        if first.name != tensor.name and not torch.equal(first.read(), tensor.read()):
            rule = (
                f"its files hold different values for {first.name} and {tensor.name}, which its "
                "configuration makes one tensor; set tie_word_embeddings: false in its config.json"
            )
            raise setting_error("model", str(folder), rule)
    return StoredWeights(folder=folder, names=names, unused=unused, ignored=ignored)


def _locate_tensors(
    model: Any, folder: Path, renamings: list[Any], converters: list[Any]
) -> Iterator[Located]:
    """Yield each tensor of the files of a folder."""
    from safetensors import safe_open
    from transformers.core_model_loading import rename_source_key

    state = model.state_dict()
    prefix = model.base_model_prefix
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118  (no mapping)
                name, pattern = rename_source_key(stored, renamings, converters, prefix, state)
                if name not in state and stored in state:
                    name, pattern = stored, None
                yield Located(path, stored, name, pattern)


def _converted_folder(
    model: Any, folder: Path, located: Sequence[Located], converters: Sequence[Any], cache_dir: str
) -> Path:
    """Return the folder with the converted tensors of a model."""
    import transformers
    from safetensors.torch import save_file
    from transformers.core_model_loading import WeightRenaming, dot_natural_key

    def write(into: Path) -> None:
        converter_of = {p: converter for converter in converters for p in converter.source_patterns}
        plan: dict[str, Any] = {}
        for tensor in sorted(located, key=lambda tensor: dot_natural_key(tensor.stored)):
            name, stored, pattern = tensor.name, tensor.stored, tensor.pattern
            if name not in plan:
                renaming = WeightRenaming(stored, name)
                plan[name] = copy.deepcopy(converter_of[pattern]) if pattern else renaming
            plan[name].add_tensor(name, stored, pattern or stored, tensor.read)

        for number, name in enumerate(list(plan)):
            # Removed from the plan, so that its memory is freed.
            made = plan.pop(name).convert(name, model=model, config=model.config)
            tensors = {}
            for key, value in made.items():
                tensors[key] = (value[0] if isinstance(value, list) else value).contiguous()
            save_file(tensors, into / f"{number:05}.safetensors")

    files = sorted(folder.glob("*.safetensors"))
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    content = ["converted", FORMAT, transformers.__version__, str(folder.resolve()), facts]
    return prepare_once(cache_dir, content, write)


# -- trying out -----------------------------------------------------------------------------------


def small_copy(model: Any) -> Any:
    """Return a model of the same class with random weights, few layers and few words, to try out.

    It has a layer of each kind that the configuration names.
    """
    config = copy.deepcopy(model.config)
    kinds = list(getattr(config, "layer_types", None) or ())
    if kinds:
        layers = max(kinds.index(kind) + 1 for kind in set(kinds))
    else:
        layers = min(2, config.num_hidden_layers)

    config.num_hidden_layers = layers
    if "layer_types" in vars(config):  # others derive it
        config.layer_types = kinds[:layers]
    config.vocab_size = min(config.vocab_size, SMALL_VOCABULARY)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, key, None)

    with torch.random.fork_rng(devices=[]):
        return model_from_config(type(model), config, attn_implementation=attention_of(config))
