"""Pretrained models of transformers on the meta device, and the files that hold their values.

The model is sharded first, and each process then reads its parts of the files. ``from_pretrained``
on the meta device compares names of tensors, and reads no values.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..checkpoint.ranges import of_model_folder
from ..data.cache import prepare_once
from ..private.transformers import converts_files, model_from_config, save_converted
from ..strategies.tensors import canonical_state
from ..task import Pretrained
from ..text import listed, several
from .configuration import changed_configuration
from .problems import setting_errors
from .quantized import follow_autocast, placement_in_4_bits

CAUSAL = "AutoModelForCausalLM"
CLASSIFIER = "AutoModelForSequenceClassification"
TRAINED = ".modules_to_save.default."  # in the names of a layer that is trained whole
# Values of a small copy, at most. Short rows show what a window or a chunk of 8 tokens changes.
SMALL = {"vocab_size": 1_024, "sliding_window": 8, "attention_chunk_size": 8}


def stored_parts(
    folder: Path, names: Collection[str], in_files: Set[str], model: Any
) -> list[Pretrained]:
    """Return the tensors ``names`` of the files of a folder, by their names in a model.

    Adapters may have been added to the model. Beside a layer that is trained whole lies the layer
    as it was. Both begin with the same values, those of the second part.
    """
    own: dict[str, str] = {}
    copies: dict[str, str] = {}
    for name in canonical_state(model):
        if bare_name(name) in names:
            (copies if TRAINED in name else own)[bare_name(name)] = name
    return [
        Pretrained(folder=folder, names=found, left_out=in_files - found.keys())
        for found in filter(None, (own, copies))
    ]


def new_in(model: Any, parts: Collection[Pretrained]) -> list[str]:
    """Return the names of the tensors of a model that no file holds."""
    tensors = canonical_state(model)
    # By identity, because a tensor may have several names in the model.
    held = {tensors[name] for part in parts for name in part.names.values()}
    return [name for name, tensor in tensors.items() if tensor not in held]


def bare_name(name: str) -> str:
    """Return the name that a tensor had before adapters wrapped its layer."""
    wrappers = r"^base_model\.model\.|\.(base_layer|original_module|modules_to_save\.default)\b"
    return re.sub(wrappers, "", name)


def build_on_meta(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str = CAUSAL,
    ignored: str | Sequence[str] = (),
    quantize: str | None = None,
    changes: Mapping[str, Any] | None = None,
    vocabulary: int = 0,
    **options: Any,
) -> tuple[Any, set[str], Callable[[Any], list[Pretrained]] | None]:
    """Build a pretrained model without its values, and find the files that hold them.

    Returned are the model, the names of the tensors that the files lack, and the files as a
    function of the model, to which adapters may be added first.

    Args:
        attention: transformers' name, or None for the choice of the model's class.
        auto_class: name of a class of transformers.
        ignored: patterns of tensors of the files that the model may lack.
        quantize: load the model with values, in this format of 4 bits. No files are read later.
        changes: keys of the configuration, checked as ``changed_configuration`` does.
        vocabulary: tokens that the embedding is to have rows for. 0: those of the files.
        options: further keys of the configuration.

    Raises:
        ConfigError: the files do not hold exactly this model, or cannot be read.
    """
    import transformers
    from transformers.utils import cached_file, find_adapter_config_file

    transformers.logging.disable_progress_bar()

    # Absolute, because the configuration of an adapter names the model by this path.
    folder = Path(name).expanduser().absolute()
    source = str(folder) if folder.is_dir() else name
    with setting_errors("model", name, "cannot be loaded"):
        if find_adapter_config_file(source):
            raise ValueError("it holds an adapter; give the adapter's model, and adapter.start")
        load = partial(
            getattr(transformers, auto_class).from_pretrained,
            pretrained_model_name_or_path=source,
            config=changed_configuration(source, changes, **options),
            output_loading_info=True,
            attn_implementation=attention,
        )
        model, info = load(device_map="meta")
        folder = Path(cached_file(source, "config.json")).parent
        if _rounds(model, folder):
            model, info = load(device_map="meta", dtype=torch.float32)
        if hasattr(model, "hf_quantizer"):
            raise ValueError("its files are quantized; give a model in 16 or 32 bits")

        missing = _new_tensors(model, info, auto_class, ignored)
        stored = _stored_in(folder, model, missing)
        rows = model.get_input_embeddings().num_embeddings
        longer = vocabulary if vocabulary > rows else 0
        is_converted = converts_files(model) or {*new_in(model, stored(model))} - missing
        if longer or (is_converted and not quantize):
            folder = _saved_again(folder, load, model, missing, cache_dir, longer)
            if longer:
                model.resize_token_embeddings(vocabulary, mean_resizing=False)
            stored = _stored_in(folder, model, missing)
            load = partial(load, pretrained_model_name_or_path=str(folder), config=model.config)

        if quantize:
            model, _ = load(**placement_in_4_bits(quantize), dtype=model.dtype)
            # The configuration of an adapter names the model that people have.
            model.name_or_path = source
            follow_autocast(model)
            return model.train(), missing, None

        # from_pretrained does not tie tensors without values, and returns the model in evaluation
        # mode.
        model.tie_weights()
        return model.train(), missing, stored


def _stored_in(folder: Path, model: Any, missing: set[str]) -> Callable[[Any], list[Pretrained]]:
    """Find a model's tensors in a folder. ValueError if a tensor with two names has two values."""
    ranges, entries = of_model_folder(folder)
    names = entries.keys() - missing
    for pair in model.all_tied_weights_keys.items():
        values = (ranges.whole("parameter", name) for name in pair)
        if names.issuperset(pair) and not torch.equal(*values):
            raise ValueError(
                f"its files hold different values for {pair}, which its config.json ties; set "
                "tie_word_embeddings: false there"
            )
    return partial(stored_parts, folder, names, {*entries})


def _rounds(model: Any, folder: Path) -> bool:
    """Return whether the dtypes of a model would round values of the files."""
    _, entries = of_model_folder(folder)
    tensors = canonical_state(model)
    dtypes = ((entry.dtype, tensors.get(name, model).dtype) for name, entry in entries.items())
    return any(torch.promote_types(*pair) != pair[1] for pair in dtypes)


def _new_tensors(
    model: Any, info: dict[str, Any], auto_class: str, ignored: str | Sequence[str]
) -> set[str]:
    """Check that model and files have the same tensors, and return the names of new tensors.

    An encoder's pooling and last layers belong to a single task: other tasks' layers in the files
    are left out, and a classifier's are new.
    """
    body = re.compile(rf"{model.base_model_prefix}\.(?!.*pooler)")
    missing: set[str] = info["missing_keys"]
    lost = [key for key in sorted(missing) if auto_class != CLASSIFIER or body.match(key)]
    if lost:
        raise ValueError(f"its files lack {listed(lost)}, which would begin as random numbers")

    unused = [
        key
        for key in sorted(info["unexpected_keys"])
        if (auto_class == CAUSAL or body.match(key))
        and not any(fnmatchcase(key, pattern) for pattern in several(ignored))
    ]
    if unused:
        raise ValueError(
            f"its files hold {listed(unused)}, which {type(model).__name__} does not know; name "
            "them in ignore_tensors (patterns such as 'mtp.*') to leave them out"
        )
    return missing


def _saved_again(
    folder: Path,
    load: partial[Any],
    model: Any,
    missing: set[str],
    cache_dir: str,
    vocabulary: int,
) -> Path:
    """Return a folder with the tensors of a model in the form and under the names of the model.

    Files may have a tensor for each expert, while the model has a single tensor for all. They are
    converted once per machine, a few gigabytes at a time, or at once if tensors are ``missing``, or
    if the model gets a larger ``vocabulary``.
    """
    import transformers

    def write(into: Path) -> None:
        with TemporaryDirectory(dir=into) as offloaded, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # save_pretrained warns that memory is used
            # save_pretrained looks on the disk for all tensors of a model that stays there.
            place = {"": "cpu" if missing or vocabulary else "disk"}
            whole, _ = load(device_map=place, offload_folder=offloaded, dtype=model.dtype)
            if vocabulary:
                _lengthen(whole, vocabulary)
            save_converted(whole, into)

    how = [type(model).__name__, str(model.dtype), transformers.__version__, str(folder.resolve())]
    if vocabulary:
        how += [str(vocabulary), str(load.keywords)]
    files = sorted(folder.glob("*.safetensors"))
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return prepare_once(cache_dir, ["saved again", *how, facts], write)


def _lengthen(model: Any, vocabulary: int) -> None:
    """Give the embedding and the head more rows, which are the mean of the others, in place."""
    old = model.get_input_embeddings().num_embeddings
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    ends = filter(None, (model.get_input_embeddings(), model.get_output_embeddings()))
    for tensor in {tensor for end in ends for tensor in end.parameters()}:
        tensor.data[old:] = tensor.data[:old].float().mean(0)


def small_copy(model: Any) -> Any:
    """Return a model of this class with random weights, few words, and a layer of each kind."""
    whole = copy.deepcopy(model.config)
    config = whole.get_text_config()
    kinds = list(getattr(config, "layer_types", None) or ())
    # Up to the first layer of each kind.
    count = max(map(kinds.index, kinds), default=1) + 1
    if "layer_types" in vars(config):  # other configurations derive the kinds
        config.layer_types = kinds[:count]
    for key, most in {**SMALL, "num_hidden_layers": count}.items():
        if getattr(config, key, None):
            setattr(config, key, min(getattr(config, key), most))
    config.pad_token_id = None  # torch refuses a padding outside of the embedding

    with torch.random.fork_rng(devices=[]):
        return model_from_config(type(model), whole)
