"""Models of transformers on the meta device, without values, and the files that hold the values.

So no process ever has the whole model in memory: the model is sharded first, and each process reads
its own parts of the files.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    """

    folder: Path
    names: dict[str, str]
    unused: list[str]

    def for_model(self, model: Any) -> Pretrained:
        """Return which tensors of a model are in the files, and which are new.

        The model may have got adapters since it was built: these are new. So are weights in 4 bits,
        which were made from the files already.

        Raises:
            ConfigError: a tensor of the files is not found in the model any more.
        """
        tensors = dict(canonical_state(model))
        name_now = {bare_name(name): name for name in tensors}
        lost = sorted(set(self.names.values()) - name_now.keys())
        if lost:
            rule = (
                f"its files hold {listed(lost)}, which is not found in the model any more since it "
                "was changed or got adapters; name it in task_settings.ignore_tensors"
            )
            raise setting_error("model", str(self.folder), rule)

        names = {stored: name_now[name] for stored, name in self.names.items()}
        # By identity, since one tensor may have several names in the model.
        in_files = {id(tensors[name]) for name in names.values()}
        new = []
        for name, tensor in tensors.items():
            in_4_bits = hasattr(tensor, "quant_state")
            if in_4_bits or id(tensor) not in in_files:
                new.append(name)
        return Pretrained(folder=self.folder, names=names, new=new)

    def keep_precision(self, model: Any) -> None:
        """Change tensors of a model to the dtype of the files, if its own would round them."""
        store, _ = of_model_folder(self.folder, self.names)
        for name, tensor in canonical_state(model):
            if tensor.is_floating_point() and name in store.names("parameter"):
                dtype = torch.promote_types(tensor.dtype, store.dtype("parameter", name))
                tensor.data = tensor.data.to(dtype)


def bare_name(name: str) -> str:
    """Return the name that a tensor had before adapters wrapped its layer."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


# -- finding and converting -----------------------------------------------------------------------


def find_stored(model: Any, folder: Path, cache_dir: str, ignored: Sequence[str]) -> StoredWeights:
    """Find the files with the values of a model.

    If tensors have to be converted (a tensor for each expert becomes one for all), the converted
    tensors are written to a folder of ``cache_dir`` once per machine, one at a time.

    Args:
        ignored: patterns of tensors of the files that are left out, such as ``mtp.*``.

    Raises:
        ConfigError: the files hold different values for one tensor of the model.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    renamings: list[Any] = []
    converters: list[Any] = []
    for conversion in get_model_conversion_mapping(model):
        (renamings if isinstance(conversion, WeightRenaming) else converters).append(conversion)

    tensors = dict(canonical_state(model))
    used, unused = [], set()
    for located in _locate_tensors(model, folder, renamings, converters):
        if located.name in tensors:
            used.append(located)
        elif not any(fnmatchcase(located.name, pattern) for pattern in ignored):
            unused.add(located.name)
    _check_tied(used, tensors, folder)

    names = {located.stored: located.name for located in used}
    if any(located.pattern for located in used):
        folder = _converted_folder(model, folder, used, converters, cache_dir)
        names = {name: name for name in of_model_folder(folder)[1]}
    return StoredWeights(folder=folder, names=names, unused=sorted(unused))


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


def _check_tied(used: Sequence[Located], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse files with different values for one tensor of the model, under its several names."""
    first_of: dict[int, Located] = {}
    for located in used:
        first = first_of.setdefault(id(tensors[located.name]), located)
        if first.name != located.name and not torch.equal(first.read(), located.read()):
            rule = (
                f"its files hold different values for {first.name} and {located.name}, which its "
                "configuration makes one tensor; set tie_word_embeddings: false in its config.json"
            )
            raise setting_error("model", str(folder), rule)


def _converted_folder(
    model: Any, folder: Path, used: Sequence[Located], converters: Sequence[Any], cache_dir: str
) -> Path:
    """Return the folder with the converted tensors of a model."""
    import transformers
    from safetensors.torch import save_file
    from transformers.core_model_loading import WeightRenaming, dot_natural_key

    def write(into: Path) -> None:
        converter_of = {p: converter for converter in converters for p in converter.source_patterns}
        plan: dict[str, Any] = {}
        for tensor in sorted(used, key=lambda tensor: dot_natural_key(tensor.stored)):
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

    facts = []
    for path in sorted(folder.glob("*.safetensors")):
        facts.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
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
