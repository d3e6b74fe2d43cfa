"""Attention over packed rows without a mask, by torch's own flash kernel (``varlen_attn``).

Several documents share a row, and must not see each other. With ``sdpa`` transformers makes a mask
of all pairs of positions for it. Beside a mask torch takes no flash kernel, repeats keys and values
for all heads, and keeps a copy of the mask in each layer; and to find out whether there are several
documents at all, the host waits for the device.

``varlen`` needs none of this: the kernel is told where documents begin, which ``Collate`` knows on
the CPU, and a document costs what it would cost alone. transformers calls the function that is
registered here under that name, and makes no mask, since no function that makes masks is registered
beside it. What a mask would have said besides (a window) the layers have to say as well; that they
do is found out by trying, on a small copy of the model.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..private.torch import mark_dynamic
from ..private.transformers import attention_of, supports_flash
from .meta_model import small_copy
from .packing import borders_of
from .problems import first_line, setting_error
from .separation import LENGTHS, small_batch

VARLEN = "varlen"
# Implementations of transformers that keep the documents of each row apart by a mask. All others
# are flash kernels, which are given the borders of documents.
DENSE = ("sdpa", "eager", "flex_attention")
# Packages of flash kernels, by what transformers calls them.
PACKAGES = {
    "flash_attention_2": "flash_attn",
    "flash_attention_3": "flash_attn_interface",
    "flash_attention_4": "flash_attn.cute",
}
# What some layers hand to their attention, and varlen_attn has no argument for.
NOT_SUPPORTED = {
    "attention_mask": "a mask of its own",
    "softcap": "a cap on its scores (softcap)",
    "s_aux": "attention sinks",
    "position_bias": "a bias of positions",
    "cache": "a paged cache",
}
# Keys of configurations that say how many positions each one sees.
WINDOWS = ("sliding_window", "window_size", "attention_window")
SMALL_WINDOW = 3  # shorter than the documents that are tried
SAME = 1e-3  # of the largest logit; in float32 other sums of the same terms differ by 1e-6


# -- which attention runs -------------------------------------------------------------------------


def launched_on() -> tuple[str, str]:
    """Return the type of the device that is trained on, and the mixed precision.

    The CPU and "no" where nothing is launched, as in ``trainer check``.
    """
    from accelerate.state import AcceleratorState, is_initialized

    if not is_initialized():
        return "cpu", "no"
    state = AcceleratorState()
    return state.device.type, str(state.mixed_precision)


def has_varlen() -> bool:
    """Return whether torch has ``varlen_attn`` with what is needed of it (2.11 has)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return inspect.signature(varlen_attn).parameters.keys() >= {"scale", "window_size"}


def check_named(attention: str | None) -> None:
    """Refuse an attention that a setting names, and that cannot run here.

    Raises:
        ConfigError: it needs a GPU or 16 bits, or is not deterministic where that is asked for.
    """
    device, precision = launched_on()
    if attention in (None, *DENSE) or (attention == VARLEN and device == "cpu"):
        return

    if attention != VARLEN and not torch.cuda.is_available():
        rule = f"runs on a GPU only; on the CPU one of {', '.join(DENSE)}, {VARLEN}"
        raise setting_error("attention", attention, rule)
    if device == "cuda" and precision == "no":
        rule = (
            "computes in 16 bits only, and mixed_precision is no; set mixed_precision: bf16, or "
            "attention: sdpa"
        )
        raise setting_error("attention", attention, rule)
    if attention == VARLEN and not has_varlen():
        rule = f"torch {torch.__version__} has no varlen_attn with windows; set sdpa"
        raise setting_error("attention", attention, rule)
    if attention != VARLEN and torch.are_deterministic_algorithms_enabled():
        _check_deterministic(str(attention))


def _check_deterministic(attention: str) -> None:
    """Refuse a flash kernel whose backward pass has no deterministic form.

    Where it has one, transformers asks for it by FLASH_ATTENTION_DETERMINISTIC, which
    ``deterministic: true`` sets. (The kernel of ``varlen`` obeys torch's own switch.)
    """
    parameters: Any = ()
    if attention in PACKAGES:
        try:
            package = __import__(PACKAGES[attention], fromlist=["flash_attn_varlen_func"])
        except ImportError:
            return  # which transformers says
        parameters = inspect.signature(package.flash_attn_varlen_func).parameters

    if "deterministic" not in parameters:
        rule = (
            "is not known to have a deterministic backward pass, which deterministic: true asks "
            f"for; set attention: {VARLEN} or sdpa, which have"
        )
        raise setting_error("attention", attention, rule)


def why_not_by_default() -> str:
    """Return why packed rows do not run by ``varlen`` where no attention is named; empty if so."""
    device, precision = launched_on()
    if device != "cuda":
        return f"{VARLEN} is for GPUs"
    if precision == "no":
        return f"{VARLEN} computes in 16 bits, and mixed_precision is no"
    if not has_varlen():
        return f"torch {torch.__version__} has no varlen_attn with windows"
    return ""


# -- trying out -----------------------------------------------------------------------------------


def varlen_copy(model: Any) -> Any:
    """Return a small copy of a model with ``varlen``, which computes what the model would compute.

    It is tried on the CPU: on packed documents it must have the logits that each document has
    alone, with the attention of the model.

    Raises:
        ConfigError: its class cannot do without a mask, or asks for what varlen_attn cannot do.
    """
    try:
        why_not, copy = _try(model)
    except (NotImplementedError, TypeError, ValueError, RuntimeError, ImportError) as error:
        why_not, copy = first_line(error), None
    if why_not:
        raise setting_error("attention", VARLEN, f"{why_not}; set sdpa")
    return copy


def _try(model: Any) -> tuple[str, Any]:
    """Return why a model cannot run by ``varlen``, and the copy that does where it can."""
    name = type(model).__name__
    if not supports_flash(model):
        return f"transformers knows no flash attention for {name}", None
    if not getattr(model.config, "is_causal", True):
        return f"{name} lets positions see what comes later (is_causal: false)", None

    windows = {}
    for key in WINDOWS:
        if isinstance(getattr(model.config, key, None), int):
            windows[key] = SMALL_WINDOW
    copy = small_copy(model, **windows).float().eval()
    with torch.no_grad():
        alone = _logits_of_documents_alone(copy)
        copy.set_attn_implementation(VARLEN)
        if attention_of(copy.config) != VARLEN:
            return f"{name} has an attention of its own", None
        batch = small_batch(copy)
        inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
        packed = copy(**inputs, **borders_for(batch), use_cache=False).logits.flatten(0, 1)

    # Behind the documents is the padding of the second row.
    difference = (packed[: len(alone)] - alone).abs().max()
    if not difference <= SAME * alone.abs().max():
        return f"{name} would compute other numbers: it tells some of its mask to no kernel", None
    return "", copy


def _logits_of_documents_alone(model: Any) -> Tensor:
    """Return the logits of all tokens of the documents that are tried, (tokens, words)."""
    batch = small_batch(model)
    logits = []
    for ids, lengths in zip(batch["input_ids"], LENGTHS, strict=True):
        for document in ids[: sum(lengths)].split(list(lengths)):
            logits.append(model(input_ids=document[None], use_cache=False).logits[0])
    return torch.cat(logits)


# -- what the model is given ----------------------------------------------------------------------


def borders_for(batch: Any) -> dict[str, Any]:
    """Return what flash kernels are given beside the tokens of a batch: the borders of documents.

    All four are values that the host knows, so nothing waits for the device; but for a batch of a
    collate that tells no borders, which are found in its positions.
    """
    borders = batch.get("cu_seq_lens")
    if borders is None:
        borders = borders_of(batch["position_ids"])
    # Their number changes from batch to batch; a compiled layer is told so, and is compiled once.
    mark_dynamic(borders, 0)
    longest = batch["input_ids"].shape[1]  # a constant; no document has more positions than a row
    return {
        "cu_seq_lens_q": borders,
        "cu_seq_lens_k": borders,
        "max_length_q": longest,
        "max_length_k": longest,
    }


# -- the attention of a layer ---------------------------------------------------------------------


def register() -> None:
    """Make ``varlen`` known to transformers, for models that are built from now on."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(VARLEN, varlen_attention)


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each document, as a layer of transformers asks for it.

    Args:
        module: the layer.
        query: (rows, heads, positions, features).
        key, value: the same, with as many heads or fewer, each for a group of the query's.
        attention_mask: none is made for this attention.
        scaling: of the scores; None: 1 / sqrt(features).
        dropout: of the weights; only 0 is supported.
        sliding_window: how many positions each one sees, itself included; None: all before it.
        is_causal: whether none sees what comes later; None: as the layer's class says.
        cu_seq_lens_q, max_length_q: as ``borders_for`` gives them.
        others: what has no effect, or must be None.

    Returns:
        (rows, positions, heads, features), and None in the place of the weights.

    Raises:
        NotImplementedError: the layer asks for what the kernel cannot do.
    """
    _check_asked(module, {**others, "attention_mask": attention_mask}, dropout, is_causal)
    if cu_seq_lens_q is None or max_length_q is None:
        raise NotImplementedError(f"{type(module).__name__} is not told where documents begin")

    device = query.device.type
    # Positions may have turned queries and keys into float32, and the kernel knows no autocast.
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else value.dtype
    rows, features, of_values = len(query), query.shape[-1], value.shape[-1]
    if of_values != features:  # latent attention; the kernel wants as many
        value = F.pad(value, [0, features - of_values])

    before = -1
    if sliding_window is not None and sliding_window < max_length_q:
        before = sliding_window - 1
    scale = features**-0.5 if scaling is None else scaling
    output = _attend(
        _one_row(query, dtype),
        _one_row(key, dtype),
        _one_row(value, dtype),
        cu_seq_lens_q,
        max_length_q,
        before,
        scale,
    )
    return output.view(rows, -1, *output.shape[1:])[..., :of_values], None


def _check_asked(
    module: nn.Module, asked: dict[str, Any], dropout: float, is_causal: bool | None
) -> None:
    """Raise ``NotImplementedError`` if a layer asks for what ``varlen_attn`` cannot do."""
    name = type(module).__name__
    for key, what in NOT_SUPPORTED.items():
        if asked.get(key) is not None:
            raise NotImplementedError(f"{name} has {what}, which {VARLEN} cannot do")
    if dropout:
        raise NotImplementedError(f"{name} has dropout, which {VARLEN} cannot do")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal:
        raise NotImplementedError(f"{name} sees what comes later, which {VARLEN} is not meant for")


def _one_row(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (rows x positions, heads, features) of (rows, heads, positions, features)."""
    return tensor.to(dtype).transpose(1, 2).flatten(0, 1)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    borders: Tensor,
    longest: int,
    before: int,
    scale: float,
) -> Tensor:
    """Attend by torch's kernel, or on the CPU by what stands in for it.

    Keys and values are not repeated for the heads of a group.
    """
    if query.device.type == "cpu":
        from .varlen_stand_in import attend

        return attend(query, key, value, borders, before, scale)

    from torch.nn.attention.varlen import varlen_attn

    settings: dict[str, Any] = {"scale": scale, "window_size": (before, 0)}
    # torch 2.11 takes groups of heads unasked, 2.13 where it is asked.
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        settings["enable_gqa"] = key.shape[1] != query.shape[1]
    kernel: Any = varlen_attn  # with a second result where it is asked for
    output: Tensor = kernel(query, key, value, borders, borders, longest, longest, **settings)
    return output
