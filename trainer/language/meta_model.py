"""Pretrained models of transformers on the meta device, and the files that hold their values.

No process ever has the whole model in memory: the model is sharded first, and each process reads
its own parts of the files. ``from_pretrained`` on the meta device gives the model and compares the
names of the model's tensors with the names in the files, and reads no values.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..checkpoint.ranges import Ranges, of_model_folder
from ..data.cache import prepare_once
from ..errors import ConfigError
from ..private.transformers import converts_files, model_from_config
from ..strategies.tensors import canonical_state
from ..task import Pretrained
from ..text import listed
from .problems import first_line, setting_error
from .quantized import follow_autocast, placement_in_4_bits

CAUSAL = "AutoModelForCausalLM"
CLASSIFIER = "AutoModelForSequenceClassification"
FILES_OF_A_MODEL = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
SMALL_VOCABULARY = 1_024  # of a small copy, at most


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """The files with the values of a model.

    Args:
        folder: with safetensors files.
        names: of the tensors in the files that the model has as well.
    """

    folder: Path
    names: frozenset[str]

    def for_model(self, model: Any) -> Pretrained:
        """Return which tensors of a model are in the files, and which are new.

        New are the adapters that the model got since it was built.

        Raises:
            KeyError: the model has lost a tensor of the files since then.
        """
        tensors = dict(canonical_state(model))
        name_now = {bare_name(name): name for name in tensors}
        names = {name: name_now[name] for name in self.names}
        # By identity, because a tensor may have several names in the model.
        in_files = {id(tensors[name]) for name in names.values()}
        new = [name for name, tensor in tensors.items() if id(tensor) not in in_files]
        return Pretrained(folder=self.folder, names=names, new=new)


def bare_name(name: str) -> str:
    """Return the name that a tensor had before adapters wrapped its layer."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


def build_on_meta(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str = CAUSAL,
    ignored: Sequence[str] = (),
    quantize: str | None = None,
    **options: Any,
) -> tuple[Any, StoredWeights | None]:
    """Build a pretrained model without its values, and find the files that hold them.

    Args:
        name: a folder of safetensors or a name on the Hub.
        attention: transformers' name, or None for the choice of the model's class.
        cache_dir: for converted files.
        auto_class: of transformers, that knows the model's class.
        ignored: patterns of tensors of the files that the model may lack.
        quantize: load the model with its values in this format of 4 bits. There are no files to
            read later.
        options: of the configuration.

    Raises:
        ConfigError: a file is missing, damaged or of another kind, the Hub cannot be reached, or
            the files do not hold exactly this model.
    """
    import transformers

    logging: Any = transformers.logging
    logging.disable_progress_bar()  # each rank would draw a bar

    # An adapter names its base by this path, which is to be found from any working directory.
    folder = Path(name).expanduser().absolute()
    source = str(folder) if folder.is_dir() else name

    def load(**placement: Any) -> Any:
        build = getattr(transformers, auto_class).from_pretrained
        how = {"attn_implementation": attention, "ignore_mismatched_sizes": True, **options}
        return build(source, output_loading_info=True, **how, **placement)

    try:
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, allow_patterns=FILES_OF_A_MODEL))
        if (folder / "adapter_config.json").is_file():
            raise ValueError("it holds an adapter; merge the adapter into its model first")
        ranges, _ = of_model_folder(folder)
        model, info = load(device_map="meta")
        if _rounds(model, ranges):
            model, info = load(device_map="meta", dtype=torch.float32)
        if hasattr(model, "hf_quantizer"):
            raise ValueError("its files are quantized; give a model in 16 or 32 bits")
        missing = _check_tensors(name, model, info, auto_class, ignored)

        if quantize is not None:
            model, _ = load(**placement_in_4_bits(quantize), dtype=model.dtype)
            follow_autocast(model)
            return model.train(), None

        # from_pretrained leaves tied tensors apart if they have no values to compare, and leaves
        # the model in evaluation mode.
        model.tie_weights()
        model.train()
        stored = _stored_in(folder, model, ranges, missing)
        if converts_files(model) or set(stored.for_model(model).new) - missing:
            folder = _converted_folder(folder, load, model, missing, cache_dir)
            stored = _stored_in(folder, model, of_model_folder(folder)[0], missing)
        return model, stored
    except ConfigError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise setting_error("model", name, f"cannot be loaded: {first_line(error)}") from None


def _stored_in(folder: Path, model: Any, ranges: Ranges, missing: set[str]) -> StoredWeights:
    """Return which tensors of a model are in a folder, by the names that the model has for them.

    Raises:
        ConfigError: the files hold different values for a tensor that has two names in the model.
    """
    names = {name for name, _ in canonical_state(model)} & set(ranges.names("parameter")) - missing
    for name, other in model.all_tied_weights_keys.items():
        if not {name, other} <= names:
            continue
        if not torch.equal(ranges.whole("parameter", name), ranges.whole("parameter", other)):
            rule = (
                f"its files hold different values for {name} and {other}, which its configuration "
                "makes one tensor; set tie_word_embeddings: false in its config.json"
            )
            raise setting_error("model", str(folder), rule)
    return StoredWeights(folder=folder, names=frozenset(names))


def _rounds(model: Any, ranges: Ranges) -> bool:
    """Return whether the dtypes of a model would round values of its files."""
    dtypes = {name: tensor.dtype for name, tensor in canonical_state(model)}
    for name in ranges.names("parameter"):
        own = dtypes.get(name, model.dtype)
        if torch.promote_types(ranges.dtype("parameter", name), own) != own:
            return True
    return False


def _check_tensors(
    name: str, model: Any, info: dict[str, Any], auto_class: str, ignored: Sequence[str]
) -> set[str]:
    """Check that model and files have the same tensors, and return the names of new tensors.

    An encoder's pooling and last layers belong to a single task: other tasks' layers in the files
    are left out, and a classifier's are new.

    Raises:
        ConfigError: another tensor is missing, unused, or of another shape.
    """
    body = re.compile(rf"{model.base_model_prefix}\.(?!.*pooler)")
    missing: set[str] = set(info["missing_keys"])
    lost = sorted(key for key in missing if auto_class != CLASSIFIER or body.match(key))
    if info["mismatched_keys"]:
        key, stored, own = min(info["mismatched_keys"])
        rule = f"its files hold {key} as {[*stored]}, and its config.json says {[*own]}"
        raise setting_error("model", name, rule)
    if lost:
        rule = f"its files lack {listed(lost)}, which would begin as random numbers"
        raise setting_error("model", name, rule)

    left_out = re.compile("|".join(map(translate, ignored)) or "(?!)")
    unused = [key for key in sorted(info["unexpected_keys"]) if not left_out.match(key)]
    unused = [key for key in unused if auto_class == CAUSAL or body.match(key)]
    if unused:
        rule = (
            f"its files hold {listed(unused)}, which {type(model).__name__} does not know; name "
            "them in ignore_tensors (patterns such as 'mtp.*') to leave them out"
        )
        raise setting_error("model", name, rule)
    return missing


def _converted_folder(
    folder: Path, load: Callable[..., Any], model: Any, missing: set[str], cache_dir: str
) -> Path:
    """Return a folder with the tensors of a model in the model's own form, under its own names.

    Files may have other names, or a tensor for each expert, while the model has a single tensor
    for all. They are converted once per machine, a few gigabytes at a time.

    Args:
        missing: tensors that no file holds. If there are any, the whole model is read at once.
    """
    import transformers

    # save_pretrained looks on the disk for all tensors of a model that stays there.
    place = "cpu" if missing else "disk"

    def write(into: Path) -> None:
        with TemporaryDirectory(dir=into) as offloaded, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # save_pretrained warns of its use of memory
            whole, _ = load(device_map={"": place}, offload_folder=offloaded, dtype=model.dtype)
            whole.save_pretrained(into, save_original_format=False, max_shard_size="2GB")

    facts = []
    for path in sorted(folder.glob("*.safetensors")):
        facts.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    how = [type(model).__name__, str(model.dtype), transformers.__version__]
    return prepare_once(cache_dir, ["saved again", *how, str(folder.resolve()), facts], write)


def small_copy(model: Any) -> Any:
    """Return a model of the same class with random weights, few layers and few words, to try out.

    The copy has a layer of each kind that the configuration names.
    """
    config = copy.deepcopy(model.config)
    kinds = list(getattr(config, "layer_types", None) or ())
    layers = min(2, config.num_hidden_layers)
    if kinds:
        layers = max(kinds.index(kind) + 1 for kind in set(kinds))

    config.num_hidden_layers = layers
    if "layer_types" in vars(config):  # others derive it
        config.layer_types = kinds[:layers]
    config.vocab_size = min(config.vocab_size, SMALL_VOCABULARY)
    config.pad_token_id = None  # torch refuses a padding outside of the embedding

    with torch.random.fork_rng(devices=[]):
        return model_from_config(type(model), config)
