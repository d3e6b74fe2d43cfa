"""The keys of a DeepSpeed JSON, read from the source of the installed DeepSpeed.

The source is parsed and not imported. The import takes half a second more, and it chooses the
device of the process before a launch file with ``use_cpu: true`` can hide the GPUs from it.

DeepSpeed declares a section in one of two ways. Either as a pydantic model, whose fields are the
keys. Or as pairs of constants, ``NAME = "key"`` and ``NAME_DEFAULT = value``.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from ...config.annotations import About
from ...errors import LaunchError

Key = tuple[str, ...]

# Sections that are pydantic models: file and class.
_MODELS = {
    "zero_optimization": ("runtime/zero/config.py", "DeepSpeedZeroConfig"),
    "zero_optimization.offload_param": (
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadParamConfig",
    ),
    "zero_optimization.offload_optimizer": (
        "runtime/zero/offload_config.py",
        "DeepSpeedZeroOffloadOptimizerConfig",
    ),
    "zero_optimization.leaf_module": (
        "runtime/zero/leaf_module_config.py",
        "DeepSpeedZeroLeafModuleConfig",
    ),
    "fp16": ("runtime/precision_config.py", "DeepSpeedFP16Config"),
    "bf16": ("runtime/precision_config.py", "DeepSpeedBF16Config"),
    "bfloat16": ("runtime/precision_config.py", "DeepSpeedBF16Config"),
    "comms_logger": ("comm/config.py", "CommsLoggerConfig"),
    "tensorboard": ("monitor/config.py", "TensorBoardConfig"),
    "wandb": ("monitor/config.py", "WandbConfig"),
    "csv_monitor": ("monitor/config.py", "CSVConfig"),
    "comet": ("monitor/config.py", "CometConfig"),
    "compile": ("compile/config.py", "CompileConfig"),
    "timers.throughput": ("utils/config.py", "DeepSpeedThroughputTimerConfig"),
}

# Sections that are pairs of constants, and their file. "" is the top level.
_TOP_LEVEL_FILE = "runtime/constants.py"
_CONSTANTS = {
    "aio": "runtime/swap_tensor/constants.py",
    "flops_profiler": "profiling/constants.py",
    "activation_checkpointing": "runtime/activation_checkpointing/config.py",
}

# Sections whose keys DeepSpeed's code reads one by one: nothing there lists them.
_LISTED: dict[str, dict[str, Any]] = {
    "optimizer": {"type": Any, "params": Any, "legacy_fusion": Any},
    "scheduler": {"type": Any, "params": Any},
    "timers": {},
    "data_types": {
        "grad_accum_dtype": Literal["fp32", "bf16", "fp16"],
        "param_dtype": Any,
        "buffer_dtype": Any,
        "keep_in_fp32_modules": Any,
    },
    "checkpoint": {
        "tag_validation": Any,
        "load_universal": bool,
        "use_node_local_storage": bool,
        "checkpoint_serialization": bool,
    },
    "checkpoint.parallel_write": {"pipeline_stage": bool},
    "checkpoint.writer": {
        "type": Any,
        "io_buffer_size": float,
        "io_buffer_double": bool,
        "show_statistics": bool,
        "data_parallel": Any,
        "decoupled": bool,
        "io_multiplier": float,
    },
}

_SECTIONS = (*_MODELS, *_CONSTANTS, *_LISTED)

# Keys that are checked more strictly than DeepSpeed declares them.
_COUNT = Annotated[int, About(minimum=1)]
_NOT_NEGATIVE = Annotated[float, About(minimum=0)]
_OWN_TYPES: dict[str, Any] = {
    "train_batch_size": _COUNT,
    "train_micro_batch_size_per_gpu": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "gradient_clipping": _NOT_NEGATIVE,
    "zero_optimization.stage": int,
    "zero_optimization.offload_optimizer.device": Literal["none", "cpu", "nvme"],
    "zero_optimization.offload_param.device": Literal["none", "cpu", "nvme"],
    "fp16.loss_scale": _NOT_NEGATIVE,
}

# By annotation of a model's field, our type and options. A whole number may be written as 2e8.
_TYPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bool": (bool, {}),
    "int": (float, {"whole": True}),
    "float": (float, {}),
    "str": (str, {}),
    "Path": (str, {}),
}
_INSTALL_KNOWN = "install a version that samecurve knows: pip install 'deepspeed<0.20'"
_LIMITS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}


def is_installed() -> bool:
    """Return whether DeepSpeed is installed."""
    return _folder() is not None


def keys_at(path: Key = ()) -> dict[str, Any]:
    """Return the annotation of each key at ``path``; {} where DeepSpeed declares none."""
    return _declared_at(path) if is_installed() else {}


def is_section(path: Key) -> bool:
    """Return whether there are known keys below ``path``."""
    return ".".join(path) in _SECTIONS


def resolves_auto(path: Key) -> bool:
    """Return whether DeepSpeed takes its default for each "auto" in this section."""
    return ".".join(path) in _MODELS


@functools.cache
def removed_keys() -> dict[str, str]:
    """Return the dotted keys that DeepSpeed has removed, with the first sentence of its reason."""
    found = {}
    tables = {
        "_REMOVED_TOP_LEVEL_CONFIG_KEYS": "",
        "_REMOVED_ZERO_CONFIG_KEYS": "zero_optimization.",
    }
    for node in _tree("runtime/config.py").body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in tables:
            for key, reason in zip(node.value.keys, node.value.values, strict=True):  # type: ignore[attr-defined]
                text = "".join(_texts(reason))
                found[tables[target.id] + key.value] = text.partition(". ")[0].rstrip(".")
    return found


@functools.cache
def constructor_defaults(file: str, name: str) -> dict[str, Any]:
    """Return the arguments of a class of DeepSpeed after the first, with their defaults."""
    constants = _constants(file)
    for node in _class(file, name).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args[2:]]
            values = [_value(default, constants) for default in node.args.defaults]
            without_default = [None] * (len(names) - len(values))
            return dict(zip(names, without_default + values, strict=True))
    return {}


def _folder() -> Path | None:
    spec = find_spec("deepspeed")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@functools.cache
def _tree(file: str) -> ast.Module:
    folder = _folder()
    assert folder is not None
    path = folder / file
    if not path.is_file():
        raise LaunchError(f"the installed DeepSpeed has no {file}; {_INSTALL_KNOWN}")
    return ast.parse(path.read_text(encoding="utf-8"))


def _class(file: str, name: str) -> ast.ClassDef:
    for node in _tree(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise LaunchError(f"the installed DeepSpeed's {file} has no class {name}; {_INSTALL_KNOWN}")


@functools.cache
def _declared_at(path: Key) -> dict[str, Any]:
    section = ".".join(path)
    if section in _MODELS:
        keys = _model_fields(*_MODELS[section])
    elif section in _CONSTANTS:
        keys = _constant_pairs(_CONSTANTS[section])
        keys.pop(section, None)  # the name of the section itself
    elif section in _LISTED:
        keys = dict(_LISTED[section])
    elif not section:
        keys = _top_level()
    else:
        return {}

    for name in (*keys, *_subsections(path)):
        keys[name] = _OWN_TYPES.get(".".join((*path, name)), keys.get(name, dict))
    return keys


def _top_level() -> dict[str, Any]:
    """Return the keys of the top level that are values.

    The same file has the constants of some sections as well, which are left out.
    """
    nested = {name for section in _SECTIONS for name in keys_at(tuple(section.split(".")))}
    pairs = _constant_pairs(_TOP_LEVEL_FILE)
    return {name: spec for name, spec in pairs.items() if name not in nested}


def _subsections(path: Key) -> list[str]:
    found = []
    for section in _SECTIONS:
        *above, name = section.split(".")
        if tuple(above) == path:
            found.append(name)
    return found


def _model_fields(file: str, name: str) -> dict[str, Any]:
    """Return the fields of a pydantic model by name and, where they have one, by alias as well."""
    fields = {}
    for node in _class(file, name).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        arguments = {}
        if isinstance(node.value, ast.Call):
            arguments = {word.arg: _value(word.value, {}) for word in node.value.keywords}

        annotation = _annotation(ast.unparse(node.annotation), arguments)
        fields[node.target.id] = annotation
        if arguments.get("alias"):
            fields[arguments["alias"]] = annotation
    return fields


def _annotation(declared: str, arguments: dict[str | None, Any]) -> Any:
    """Return the annotation for a field that is declared as this text."""
    if declared.startswith("Optional["):
        declared = declared.removeprefix("Optional[").removesuffix("]")
    if declared not in _TYPES:
        return Any
    kind, about = _TYPES[declared]
    limits = {name: arguments[word] for word, name in _LIMITS.items() if word in arguments}
    return Annotated[kind, About(**about, **limits)]


def _constant_pairs(file: str) -> dict[str, Any]:
    """Return the keys that a file declares, with the type of their default."""
    constants = _constants(file)
    keys: dict[str, Any] = {}
    for name, key in constants.items():
        if not isinstance(key, str) or f"{name}_DEFAULT" not in constants:
            continue
        default = constants[f"{name}_DEFAULT"]
        if isinstance(default, bool):
            keys[key] = bool
        elif isinstance(default, int | float):
            keys[key] = float
        else:
            keys[key] = Any
    return keys


def _constants(file: str) -> dict[str, Any]:
    """Return the constants of a module; None for those that are computed."""
    found: dict[str, Any] = {}
    for node in _tree(file).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = _value(node.value, found)
    return found


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    """Return the value of an expression that is a literal or the name of a constant, else None."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _texts(node: ast.expr) -> list[str]:
    """Return the constant parts of a text, without the values that an f-string puts in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return [str(part.value) for part in parts if isinstance(part, ast.Constant)]
