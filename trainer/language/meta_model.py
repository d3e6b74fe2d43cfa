"""Transformers models built without values, on the meta device, and where in their files the values
stand.

So no process holds a model whole: it is divided first, and each process reads its own parts of the
files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..checkpoint.ranges import Ranges, of_model_folder
from ..data.cache import prepare_once
from ..strategies.tensors import canonical_state
from ..task import Pretrained
from ..text import listed
from .problems import setting_error

VOCABULARY = 1_024  # of a small copy
WRITTEN_TOGETHER = 256 << 20  # bytes of a file of converted tensors, or one tensor
COMPARED_TOGETHER = 1 << 24  # elements of two tensors in memory at a time


# A tensor: its file, its name there and in the model, and the pattern by which a converter takes
# it.
Located = tuple[Path, str, str, str | None]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The files of a model.

    Args:
        folder: with safetensors files.
        names: what tensors are called in the model, by their names in the files.
        unused: tensors of the files that the model has no place for, as they would be called in it.
        ignored: patterns of tensors of the files that the model may lack.
    """

    folder: Path
    names: dict[str, str]
    unused: list[str]
    ignored: Sequence[str] = ()

    def of(self, model: Any) -> Pretrained:
        """Return what fills a model that may have got adapters since: what they have added begins
        anew.

        Weights in 4 bits, no floating-point numbers, have been made of the files already.

        Raises:
            ConfigError: a tensor that the files have a value for is not found in the model any
                more.
        """
        tensors = dict(canonical_state(model))
        own = {bare_name(name): name for name in tensors}
        lost = sorted(
            name
            for name in self.names.values()
            if name not in own and not matches(name, self.ignored)
        )
        if lost:
            rule = (
                f"its files hold {listed(lost)}, which is not found in the model any more since it was changed or got "
                "adapters, and would begin as random numbers; if the model is not to have it, name it in "
                "task_settings.ignore_tensors"
            )
            raise setting_error("model", str(self.folder), rule)

        names = {stored: own[name] for stored, name in self.names.items() if name in own}
        found = {id(tensors[name]) for name in names.values()}
        new = [
            name
            for name, tensor in tensors.items()
            if id(tensor) not in found or is_quantized(tensor)
        ]
        return Pretrained(folder=self.folder, names=names, new=new)

    def missing(self, model: Any) -> list[str]:
        """List the tensors of a model that no file holds, under none of their names."""
        return list(self.of(model).new)

    def tied_apart(self, model: Any) -> list[str]:
        """List names of one tensor of the model under which the files hold different values."""
        tensors = dict(canonical_state(model))
        shared: dict[int, list[str]] = {}
        for name in self.names.values():
            shared.setdefault(id(tensors[name]), []).append(name)

        store, _ = of_model_folder(self.folder, self.names)
        for first, *others in shared.values():
            different = [other for other in others if not _same_values(store, first, other)]
            if different:
                return [first, *different]
        return []

    def keep_precision(self, model: Any) -> None:
        """Have tensors of a model in the dtype of the files, where that of its configuration would
        round them.
        """
        import torch

        store, _ = of_model_folder(self.folder, self.names)
        own = dict(canonical_state(model))
        for name in own.keys() & store.names("parameter"):
            if own[name].is_floating_point():
                own[name].data = own[name].data.to(
                    torch.promote_types(own[name].dtype, store.dtype("parameter", name))
                )


def _same_values(store: Ranges, one: str, other: str) -> bool:
    """Compare two tensors of a store, some of their values in memory at a time."""
    import torch

    size, dtype = store.size("parameter", one), store.dtype("parameter", one)
    if (size, dtype) != (store.size("parameter", other), store.dtype("parameter", other)):
        return False
    for low in range(0, size, COMPARED_TOGETHER):
        parts = [torch.empty(min(COMPARED_TOGETHER, size - low), dtype=dtype) for _ in range(2)]
        for name, part in zip((one, other), parts, strict=True):
            store.read("parameter", name, low, part)
        if not torch.equal(*parts):
            return False
    return True


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a tensor is called as one of some patterns says, such as ``mtp.*``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_quantized(tensor: Any) -> bool:
    """Tell whether a tensor of a model is a weight that is held in whole numbers."""
    return hasattr(tensor, "quant_state")


def bare_name(name: str) -> str:
    """Return the name that a tensor had before adapters were added, of which some stand around
    others.
    """
    parts = name.removeprefix("base_model.model.").split(".")
    return ".".join(part for part in parts if part != "base_layer")


def find_stored(
    model: Any, folder: Path, cache_dir: str, ignored: Sequence[str] = ()
) -> Stored | None:
    """Find where the values of a model stand; None where no file is a safetensors file.

    Where tensors have to be converted (experts that have one each become one), they stand in a
    folder of ``cache_dir`` that is made once on each machine, with one tensor of the model in
    memory at a time and some that wait.

    Args:
        ignored: patterns of tensors of the files that the model may lack.
    """
    import transformers

    found = list(_tensors(model, folder))
    if not found:
        return None
    state = model.state_dict()
    unused = sorted({name for *_, name, _ in found if name not in state})
    used = [one for one in found if one[2] in state]
    names = {stored: name for _, stored, name, _ in used}

    if any(pattern for *_, pattern in used):
        files = sorted({path for path, *_ in found})
        facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        content = ["converted", 2, transformers.__version__, str(folder.resolve()), facts]
        folder = prepare_once(cache_dir, content, lambda into: _write_converted(model, used, into))
        names = {name: name for name in of_model_folder(folder)[1]}
    return Stored(folder=folder, names=names, unused=unused, ignored=ignored)


def _write_converted(model: Any, located: Iterable[Located], into: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers.core_model_loading import WeightRenaming, dot_natural_key

    converters = {pattern: one for one in _mapping(model)[1] for pattern in one.source_patterns}
    found: dict[str, Any] = {}  # what makes a tensor, or several, by the first one's name
    for path, stored, name, pattern in sorted(located, key=lambda one: dot_natural_key(one[1])):
        blank = copy.deepcopy(converters[pattern]) if pattern else WeightRenaming(stored, name)

        def read(path: Path = path, stored: str = stored) -> Any:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(stored)

        found.setdefault(name, blank).add_tensor(name, stored, pattern or stored, read)
    made: dict[str, Any] = {}
    for number, name in enumerate(list(found), 1):
        tensors = found.pop(name).convert(name, model=model, config=model.config)
        made |= {
            key: (value[0] if isinstance(value, list) else value).contiguous()
            for key, value in tensors.items()
        }
        if not found or sum(tensor.nbytes for tensor in made.values()) > WRITTEN_TOGETHER:
            save_file(made, into / f"{number:05}.safetensors")
            made = {}


def _mapping(model: Any) -> tuple[list[Any], list[Any]]:
    """Return what transformers does with the names in files, and with their tensors."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming

    found = get_model_conversion_mapping(model)
    renamings: list[Any] = [one for one in found if isinstance(one, WeightRenaming)]
    return renamings, [one for one in found if not isinstance(one, WeightRenaming)]


def _tensors(model: Any, folder: Path) -> Iterator[Located]:
    """Yield each tensor of the files of a folder."""
    from safetensors import safe_open
    from transformers.core_model_loading import rename_source_key

    mapping, state, prefix = _mapping(model), model.state_dict(), model.base_model_prefix
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118  (no mapping)
                name, pattern = rename_source_key(stored, *mapping, prefix, state)
                if name not in state and stored in state:
                    name, pattern = stored, None
                yield path, stored, name, pattern


def converted(file: Path, cache_dir: str, load: Callable[[], Any]) -> Path:
    """Return a folder with the safetensors files of a GGUF file, made once on each machine from
    what ``load`` gives.
    """
    facts = file.stat()
    content = ["gguf", 2, str(file.resolve()), facts.st_size, facts.st_mtime_ns]
    return prepare_once(cache_dir, content, lambda folder: _save(load(), folder))


def _save(model: Any, folder: Path) -> None:
    """Write a model as its ``save_pretrained`` does, which of several processes writes nothing but
    in the first one.
    """
    from safetensors.torch import save_model

    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})


def small_copy(model: Any) -> Any:
    """Build a model of the same class with random weights, a few layers and words: something to try
    out.

    It has a layer of each kind that the configuration names.
    """
    import torch

    config = copy.deepcopy(model.config)
    kinds = list(getattr(config, "layer_types", None) or ())
    layers = (
        min(2, config.num_hidden_layers)
        if not kinds
        else max(kinds.index(kind) + 1 for kind in set(kinds))
    )
    config.num_hidden_layers = layers
    if "layer_types" in vars(config):  # others derive it
        config.layer_types = kinds[:layers]
    config.vocab_size = min(config.vocab_size, VOCABULARY)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, key, None)
    with torch.random.fork_rng(devices=[]):
        return type(model)._from_config(config, attn_implementation=config._attn_implementation)
