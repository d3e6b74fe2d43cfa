"""Models of transformers on the meta device, without values, and the files that hold the values.

So no process ever has the whole model in memory: it is sharded first, and each process reads its
own parts of the files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..checkpoint.ranges import Ranges, of_model_folder
from ..data.cache import prepare_once
from ..private.transformers import attention_of, model_from_config
from ..strategies.tensors import canonical_state
from ..task import Pretrained
from ..text import listed
from .problems import setting_error

FORMAT = 2  # raise it when the same files are converted into others
SMALL_VOCABULARY = 1_024  # of a small copy, at most
WRITTEN_TOGETHER = 256 << 20  # bytes of a file of converted tensors; a larger tensor is alone
COMPARED_TOGETHER = 1 << 24  # elements of two tensors in memory at a time


class Located(NamedTuple):
    """A tensor in a file.

    Args:
        path: of the file.
        stored: its name there.
        name: its name in the model; some stored tensors become one of the model (experts).
        pattern: of the converter that makes the model's tensor; None: it is stored as it is.
    """

    path: Path
    stored: str
    name: str
    pattern: str | None


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
        self._check_found(name_in_model)

        names = {}
        for stored, name in self.names.items():
            if name in name_in_model:
                names[stored] = name_in_model[name]

        # By identity, since one tensor may have several names in the model.
        in_files = {id(tensors[name]) for name in names.values()}
        new = []
        for name, tensor in tensors.items():
            if id(tensor) not in in_files or is_quantized(tensor):
                new.append(name)
        return Pretrained(folder=self.folder, names=names, new=new)

    def _check_found(self, names: Mapping[str, str]) -> None:
        lost = []
        for name in self.names.values():
            if name not in names and not matches(name, self.ignored):
                lost.append(name)
        if lost:
            rule = (
                f"its files hold {listed(sorted(lost))}, which is not found in the model any more "
                "since it was changed or got adapters, and would begin as random numbers; if the "
                "model is not to have it, name it in task_settings.ignore_tensors"
            )
            raise setting_error("model", str(self.folder), rule)

    def missing(self, model: Any) -> list[str]:
        """List the tensors of a model that no file holds, under none of their names."""
        return list(self.for_model(model).new)

    def tied_apart(self, model: Any) -> list[str]:
        """List names of one tensor of the model under which the files hold different values."""
        tensors = dict(canonical_state(model))
        names_of_tensor: dict[int, list[str]] = {}
        for name in self.names.values():
            names_of_tensor.setdefault(id(tensors[name]), []).append(name)

        store, _ = of_model_folder(self.folder, self.names)
        for first, *others in names_of_tensor.values():
            different = [other for other in others if not _same_values(store, first, other)]
            if different:
                return [first, *different]
        return []

    def keep_precision(self, model: Any) -> None:
        """Change tensors of a model to the dtype of the files, where its own would round them."""
        store, _ = of_model_folder(self.folder, self.names)
        tensors = dict(canonical_state(model))
        for name in tensors.keys() & store.names("parameter"):
            tensor = tensors[name]
            if tensor.is_floating_point():
                dtype = torch.promote_types(tensor.dtype, store.dtype("parameter", name))
                tensor.data = tensor.data.to(dtype)


def _same_values(store: Ranges, first: str, second: str) -> bool:
    """Compare two tensors of a store, with some of their values in memory at a time."""
    size, dtype = store.size("parameter", first), store.dtype("parameter", first)
    if size != store.size("parameter", second) or dtype != store.dtype("parameter", second):
        return False

    for begin in range(0, size, COMPARED_TOGETHER):
        length = min(COMPARED_TOGETHER, size - begin)
        left, right = torch.empty(length, dtype=dtype), torch.empty(length, dtype=dtype)
        store.read("parameter", first, begin, left)
        store.read("parameter", second, begin, right)
        if not torch.equal(left, right):
            return False
    return True


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
) -> StoredWeights | None:
    """Find the files with the values of a model; None where there is no safetensors file.

    Where tensors have to be converted (a tensor for each expert becomes one for all), they are
    written to a folder of ``cache_dir`` once per machine. A tensor of the model is in memory at a
    time, and some that wait to be written.

    Args:
        ignored: patterns of tensors of the files that the model may lack.
    """
    located = list(_locate_tensors(model, folder))
    if not located:
        return None

    state = model.state_dict()
    unused = sorted({tensor.name for tensor in located if tensor.name not in state})
    used = [tensor for tensor in located if tensor.name in state]
    if not any(tensor.pattern for tensor in used):
        names = {tensor.stored: tensor.name for tensor in used}
        return StoredWeights(folder=folder, names=names, unused=unused, ignored=ignored)

    converted = _converted_folder(model, folder, used, located, cache_dir)
    names = {name: name for name in of_model_folder(converted)[1]}
    return StoredWeights(folder=converted, names=names, unused=unused, ignored=ignored)


def _locate_tensors(model: Any, folder: Path) -> Iterator[Located]:
    """Yield each tensor of the files of a folder."""
    from safetensors import safe_open
    from transformers.core_model_loading import rename_source_key

    renamings, converters = _conversions(model)
    state = model.state_dict()
    prefix = model.base_model_prefix
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118  (no mapping)
                name, pattern = rename_source_key(stored, renamings, converters, prefix, state)
                if name not in state and stored in state:
                    name, pattern = stored, None
                yield Located(path, stored, name, pattern)


def _conversions(model: Any) -> tuple[list[Any], list[Any]]:
    """Return how transformers renames the tensors of files, and how it converts them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    conversions = get_model_conversion_mapping(model)
    renamings = [item for item in conversions if isinstance(item, WeightRenaming)]
    converters = [item for item in conversions if not isinstance(item, WeightRenaming)]
    return renamings, converters


def _converted_folder(
    model: Any, folder: Path, used: list[Located], located: list[Located], cache_dir: str
) -> Path:
    """Return the folder with the converted tensors of a model.

    Args:
        used: tensors of the files that the model has a place for.
        located: all tensors of the files.
    """
    import transformers

    facts = []
    for path in sorted({tensor.path for tensor in located}):
        facts.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    content = ["converted", FORMAT, transformers.__version__, str(folder.resolve()), facts]
    return prepare_once(cache_dir, content, lambda into: _write_converted(model, used, into))


def _write_converted(model: Any, located: Sequence[Located], into: Path) -> None:
    """Write the tensors of a model, converted from those of the files."""
    from safetensors.torch import save_file

    conversions = _plan_conversions(model, located)
    waiting: dict[str, Any] = {}
    for number, name in enumerate(list(conversions), 1):
        # Removed from the plan, so that its memory is freed.
        tensors = conversions.pop(name).convert(name, model=model, config=model.config)
        for key, value in tensors.items():
            tensor = value[0] if isinstance(value, list) else value
            waiting[key] = tensor.contiguous()

        bytes_waiting = sum(tensor.nbytes for tensor in waiting.values())
        if not conversions or bytes_waiting > WRITTEN_TOGETHER:
            save_file(waiting, into / f"{number:05}.safetensors")
            waiting = {}


def _plan_conversions(model: Any, located: Sequence[Located]) -> dict[str, Any]:
    """Return the conversion for each tensor of the model, with what reads the stored ones."""
    from transformers.core_model_loading import WeightRenaming, dot_natural_key

    _, converters = _conversions(model)
    converter_of = {}
    for converter in converters:
        for pattern in converter.source_patterns:
            converter_of[pattern] = converter

    plan: dict[str, Any] = {}
    for tensor in sorted(located, key=lambda tensor: dot_natural_key(tensor.stored)):
        name, stored, pattern = tensor.name, tensor.stored, tensor.pattern
        if name not in plan and pattern:
            plan[name] = copy.deepcopy(converter_of[pattern])
        elif name not in plan:
            plan[name] = WeightRenaming(stored, name)
        plan[name].add_tensor(name, stored, pattern or stored, _reader(tensor))
    return plan


def _reader(tensor: Located) -> Callable[[], Any]:
    """Return a function that reads a tensor."""
    from safetensors import safe_open

    def read() -> Any:
        with safe_open(tensor.path, framework="pt") as file:
            return file.get_tensor(tensor.stored)

    return read


def converted(file: Path, cache_dir: str, load: Callable[[], Any]) -> Path:
    """Return a folder with safetensors files made from a GGUF file, once per machine.

    Args:
        load: returns the model of the file.
    """
    facts = file.stat()
    content = ["gguf", FORMAT, str(file.resolve()), facts.st_size, facts.st_mtime_ns]
    return prepare_once(cache_dir, content, lambda folder: _save(load(), folder))


def _save(model: Any, folder: Path) -> None:
    """Write a model as its ``save_pretrained`` does, on whichever rank it is called.

    ``save_pretrained`` writes nothing but on the first rank.
    """
    from safetensors.torch import save_model

    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})


# -- trying out -----------------------------------------------------------------------------------


def small_copy(model: Any, **changes: Any) -> Any:
    """Return a model of the same class with random weights, few layers and few words, to try out.

    It has a layer of each kind that the configuration names.

    Args:
        changes: of keys of the configuration.
    """
    config = copy.deepcopy(model.config)
    for key, value in changes.items():
        setattr(config, key, value)
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
