"""Packed rows by ``varlen``: the numbers of a mask, without one; refused where it cannot be."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import SHAPE, save_architecture
from tiny_language import CONFIGS, build_with_batch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer import ConfigError
from trainer.language import CausalLM, MaskedLM
from trainer.language import attention as attention_module
from trainer.language.attention import (
    VARLEN,
    borders_for,
    check_named,
    has_varlen,
    register,
    varlen_attention,
    varlen_copy,
)
from trainer.language.packing import borders_of
from trainer.language.pretrained import from_configuration

DEFAULTS = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Of two rows: the documents, some longer than the window of 32 positions in SHAPE.
LENGTHS = ((50, 14), (40, 1, 23))


class Calls(TorchDispatchMode):
    """A count of the operations of torch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        self.count[str(function)] += 1
        return function(*args, **(kwargs or {}))

    def of(self, part: str) -> int:
        return sum(count for name, count in self.count.items() if part in name)


def packed_batch(device: str = "cpu") -> dict[str, torch.Tensor]:
    positions = []
    for lengths in LENGTHS:
        positions.append(torch.cat([torch.arange(length) for length in lengths]))
    ids = torch.randint(64, (2, 64), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "position_ids": torch.stack(positions)}
    batch["cu_seq_lens"] = borders_of(batch["position_ids"])
    return {name: tensor.to(device) for name, tensor in batch.items()}


def inputs_of(batch: dict[str, torch.Tensor], attention: str) -> dict[str, Any]:
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    return inputs | (borders_for(batch) if attention == VARLEN else {})


def build(name: str, attention: str = "sdpa", device: str = "cpu", **settings: Any) -> Any:
    from transformers import AutoModelForCausalLM

    register()
    given = {key: SHAPE[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    given |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = from_configuration({"model_type": name, **given, **settings}, None, DEFAULTS).config
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention).train()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 32}),
        ("gemma3_text", {"sliding_window": 32}),
        ("cohere2", {"sliding_window": 32}),
    ],
)
def test_losses_and_gradients_are_those_of_a_mask(name: str, settings: dict[str, Any]) -> None:
    batch = packed_batch()
    found = {}
    for attention in ("sdpa", VARLEN):
        model = build(name, attention, **settings).double()
        logits = model(**inputs_of(batch, attention), use_cache=False).logits
        logits.square().mean().backward()
        found[attention] = [logits.detach(), *(p.grad for p in model.parameters())]

    for masked, varlen in zip(found["sdpa"], found[VARLEN], strict=True):
        torch.testing.assert_close(varlen, masked, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma", "mixtral", "gpt2"])
def test_a_task_trains_with_the_numbers_of_a_mask(
    name: str, task: Callable[..., CausalLM], llama: Path
) -> None:
    losses = []
    for attention in ("sdpa", VARLEN):
        settings = {"model": None, "config": CONFIGS[name], "tokenizer": str(llama)}
        causal = task(**settings, attention=attention)
        model, batch = build_with_batch(causal)
        assert model.config._attn_implementation == attention
        losses.append(causal.training_step(model, batch))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)


def test_no_mask_is_made_and_nothing_is_read_back() -> None:
    batch = packed_batch()
    counts = {}
    for attention in ("sdpa", VARLEN):
        model, inputs = build("llama", attention), inputs_of(batch, attention)
        with Calls() as calls:
            model(**inputs, use_cache=False)
        counts[attention] = calls

    assert counts["sdpa"].of("_local_scalar_dense") == 1
    assert counts[VARLEN].of("_local_scalar_dense") == counts[VARLEN].of("nonzero") == 0


def test_torchs_kernel_keeps_no_mask_and_no_repeated_keys_for_the_backward_pass() -> None:
    # On the meta device torch's own operation runs, but for the arithmetic.
    kept: dict[str, list[torch.Tensor]] = {"cpu": [], "meta": []}
    for attention, device in (("sdpa", "cpu"), (VARLEN, "meta")):
        batch = packed_batch(device)
        model = build("llama", attention, device).bfloat16()

        def keep(tensor: torch.Tensor, device: str = device) -> torch.Tensor:
            kept[device].append(tensor)
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            Calls() as calls,
        ):
            output = model(**inputs_of(batch, attention), use_cache=False).logits
            output.sum().backward()

    assert calls.of("torch_attn._varlen_attn.default") == 2, "one a layer"
    assert calls.of("torch_attn._varlen_attn_backward") == 2
    assert calls.of("_local_scalar_dense") == 0

    mask = (2, 1, 64, 64)
    pairs = [tensor for tensor in kept["cpu"] if tensor.shape == mask]
    assert len({tensor.data_ptr() for tensor in pairs}) == 2, "sdpa keeps a mask a layer"
    assert not [tensor for tensor in kept["meta"] if tensor.shape == mask]
    keys_and_values = [tensor for tensor in kept["meta"] if tensor.shape == (128, 2, 8)]
    assert len(keys_and_values) == 2 * 2, "with their own two heads, not with the query's four"


@pytest.mark.parametrize("release", ["2.11", "2.13"])
def test_the_kernel_gets_window_scale_and_groups(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    calls: list[dict[str, Any]] = []

    def of_2_11(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
        *, return_aux: Any = None, scale: Any = None, window_size: Any = (-1, -1),
    ) -> Any:  # fmt: skip
        calls.append({"longest": (max_q, max_k), "scale": scale, "window": window_size})
        return torch.empty_like(query)

    def of_2_13(
        *tensors: Any, enable_gqa: bool = False, scale: Any = None, window_size: Any
    ) -> Any:
        output = of_2_11(*tensors, scale=scale, window_size=window_size)
        calls[-1]["gqa"] = enable_gqa
        return output

    monkeypatch.setattr(varlen, "varlen_attn", {"2.11": of_2_11, "2.13": of_2_13}[release])
    assert has_varlen()
    batch = packed_batch("meta")
    model = build("gemma3_text", VARLEN, "meta", sliding_window=32, query_pre_attn_scalar=16,
                  layer_types=["sliding_attention", "full_attention"])  # fmt: skip
    model(**inputs_of(batch, VARLEN), use_cache=False)

    groups = {} if release == "2.11" else {"gqa": True}
    expected = {"longest": (64, 64), "scale": 0.25, **groups}
    assert calls == [expected | {"window": (31, 0)}, expected | {"window": (-1, 0)}]


def test_torch_without_windows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, is_causal=False: query)
    assert not has_varlen()
    monkeypatch.setattr(attention_module, "launched_on", lambda: ("cuda", "bf16"))
    with pytest.raises(ConfigError, match=r"attention: 'varlen': torch .* has no varlen_attn"):
        check_named(VARLEN)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own tracing asks for it
def test_layers_compile_without_a_break_and_once_for_all_numbers_of_documents() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = build("llama", VARLEN, num_hidden_layers=4)
    for layer in model.model.layers:
        layer.compile(backend=backend, fullgraph=True)
    for lengths in ((64,), (1,) * 64, (32, 32), (4,) * 16):
        positions = torch.cat([torch.arange(length) for length in lengths]).expand(2, -1)
        batch = {"input_ids": torch.zeros(2, 64, dtype=torch.long), "position_ids": positions}
        batch["cu_seq_lens"] = borders_of(positions)
        with torch.autocast("cpu", torch.bfloat16):
            model(**inputs_of(batch, VARLEN), use_cache=False).logits.sum().backward()
    torch._dynamo.reset()
    assert len(graphs) == 1


def test_recomputed_activations_have_the_same_gradients(task: Callable[..., CausalLM]) -> None:
    gradients = []
    for recomputed in (False, True):
        causal = task(attention=VARLEN, activation_checkpointing=recomputed)
        model, batch = build_with_batch(causal)
        causal.training_step(model, batch).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for kept, again in zip(*gradients, strict=True):
        assert torch.equal(kept, again)


def test_a_batch_reaches_the_device_whole(task: Callable[..., CausalLM]) -> None:
    from accelerate.utils import send_to_device
    from torch.utils.data import DataLoader

    data = task(attention=VARLEN).build_data()
    loader = DataLoader(data.train, batch_size=2, collate_fn=data.collate, num_workers=1)
    batch = send_to_device(next(iter(loader)), torch.device("meta"))
    assert batch["cu_seq_lens"].dtype == torch.int32 and batch["cu_seq_lens"].is_meta
    assert batch["input_ids"].shape == (2, 128)


def test_a_batch_that_tells_no_borders_has_them_in_its_positions() -> None:
    batch = packed_batch()
    told = batch.pop("cu_seq_lens")
    assert torch.equal(borders_for(batch)["cu_seq_lens_q"], told)


# -- which one runs -------------------------------------------------------------------------------


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, precision: str = "bf16") -> None:
    """Choose as on a GPU; what is chosen runs on the CPU."""
    monkeypatch.setattr(attention_module, "launched_on", lambda: ("cuda", precision))


def test_varlen_is_the_default_on_gpus_in_16_bits(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cpu = task()
    assert on_cpu.build_model().config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    assert "attention: sdpa with a mask, since varlen is for GPUs" in on_cpu.notices()

    on_a_gpu(monkeypatch)
    in_16_bits = task()
    model = in_16_bits.build_model()
    assert model.config._attn_implementation == VARLEN  # type: ignore[union-attr]
    assert in_16_bits.notices()[0].startswith("attention: varlen, ")
    batch = {"input_ids": torch.zeros(2, 4), "position_ids": torch.zeros(2, 4)}
    batch["cu_seq_lens"] = torch.tensor([0, 8], dtype=torch.int32)
    assert in_16_bits.inputs(batch)["max_length_q"] == 4
    alone = task(packing="none")
    assert alone.build_model().config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    assert not [line for line in alone.notices() if "attention" in line]

    on_a_gpu(monkeypatch, "no")
    in_full = task()
    assert in_full.build_model().config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    rule = (
        "attention: sdpa with a mask, since varlen computes in 16 bits, and mixed_precision is no"
    )
    assert rule in in_full.notices()


# By model_type: settings, and why varlen cannot run it.
UNABLE: dict[str, tuple[dict[str, Any], str]] = {
    "gemma2": ({"sliding_window": 32}, r"Gemma2Attention has a cap on its scores \(softcap\)"),
    "gpt_oss": ({"num_local_experts": 4}, "GptOssAttention has attention sinks"),
    "stablelm": ({}, "StableLmAttention is not told where documents begin"),
    "bloom": ({}, "transformers knows no flash attention for BloomForCausalLM"),
    "falcon": ({}, "FalconForCausalLM has an attention of its own"),
    "llama": ({"attention_dropout": 0.1}, "LlamaAttention has dropout"),
    # transformers 5.23 makes a mask with this window, and tells no kernel of it.
    "phimoe": ({"sliding_window": 32}, "PhimoeForCausalLM would compute other numbers"),
}


@pytest.mark.parametrize("name", UNABLE)
def test_models_that_ask_for_more_are_named(
    name: str, task: Callable[..., CausalLM], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, why = UNABLE[name]
    register()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "bloom":
        sizes = {"hidden_size": 32, "n_layer": 2, "n_head": 4}
    elif name != "falcon":
        sizes |= {"num_key_value_heads": 2, "intermediate_size": 48}
    config = {"model_type": name, **sizes, **settings}
    with pytest.raises(ConfigError, match=f"attention: 'varlen': .*{why}.*; set sdpa"):
        task(model=None, config=config, tokenizer=str(llama), attention=VARLEN).build_model()

    if name in ("gemma2", "llama"):  # these two are packed beside a mask
        on_a_gpu(monkeypatch)
        causal = task(model=None, config=config, tokenizer=str(llama))
        own = causal.build_model().config._attn_implementation  # type: ignore[union-attr]
        assert own != VARLEN
        assert causal.notices()[0].startswith(f"attention: {own} with a mask, since ")


def test_what_packs_nothing_is_refused(
    task: Callable[..., CausalLM], tmp_path: Path, texts: Path
) -> None:
    with pytest.raises(ValueError, match="attention: varlen keeps packed documents apart"):
        task(attention=VARLEN, packing="none")
    with pytest.raises(ValueError, match="attention: varlen is for documents that are packed"):
        MaskedLM(model="bert", data=str(texts), attention=VARLEN)


def test_flash_kernels_in_full_precision_are_refused_before_the_first_step(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, "no")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in (VARLEN, "flash_attention_2"):
        with pytest.raises(
            ConfigError,
            match=f"attention: '{name}': computes in 16 bits only, and mixed_precision is no; set",
        ):
            task(attention=name).build_model()


def test_flash_kernels_without_a_deterministic_form_are_refused_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    check_named(VARLEN)  # its kernel obeys torch's switch

    able = SimpleNamespace(flash_attn_varlen_func=lambda q, deterministic=False: q)
    monkeypatch.setitem(sys.modules, "flash_attn", able)
    check_named("flash_attention_2")
    unable = SimpleNamespace(flash_attn_varlen_func=lambda q: q)
    monkeypatch.setitem(sys.modules, "flash_attn", unable)
    for name in ("flash_attention_2", "kernels-community/some-attn"):
        with pytest.raises(ConfigError, match="not known to have a deterministic backward pass"):
            check_named(name)


def test_what_is_exported_names_no_attention(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model, _ = build_with_batch(task(attention=VARLEN))
    model.save_pretrained(tmp_path / "model")
    assert VARLEN not in (tmp_path / "model" / "config.json").read_text()
    AutoConfig.from_pretrained(tmp_path / "model")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert again.config._attn_implementation == "sdpa"


def test_the_copy_that_is_tried_has_the_models_form(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    register()
    save_architecture(tmp_path, "mistral")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    copy = varlen_copy(model)
    assert (copy.config.sliding_window, model.config.sliding_window) == (3, 32)
    assert copy.config._attn_implementation == VARLEN
    assert model.config._attn_implementation == "sdpa"


def test_a_layer_that_is_told_no_borders_is_named() -> None:
    layer = torch.nn.Identity()
    with pytest.raises(NotImplementedError, match="Identity is not told where documents begin"):
        varlen_attention(layer, *[torch.zeros(1, 2, 4, 8)] * 3, None)


def test_flash_attention_of_transformers_reads_nothing_back_where_it_is_told_the_borders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import modeling_flash_attention_utils as flash
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    given = []

    def kernel(query: Any, key: Any, value: Any, **settings: Any) -> Any:
        given.append(settings)
        return query

    def settings_of(**asked: Any) -> dict[str, Any]:
        return {key: value for key, value in asked.items() if key.startswith("max_seqlen")}

    functions: Any = ((kernel, kernel, kernel, None, None), settings_of)  # as 5.17 wants them
    if "process_paged_kwargs_fn" in inspect.getsource(flash):
        functions = (functions[0], (settings_of, settings_of))
    monkeypatch.setattr(flash, "lazy_import_flash_attention", lambda *names: functions)
    ALL_ATTENTION_FUNCTIONS.register("kernel", flash_attention_forward)

    batch, counts = packed_batch(), []
    row = {name: batch[name].reshape(1, -1) for name in ("input_ids", "position_ids")}
    for inputs in (row, row | borders_for(batch)):
        model = build("llama", "kernel")
        with Calls() as calls:
            model(**inputs, use_cache=False)
        counts.append(calls.of("_local_scalar_dense") + calls.of("nonzero"))

    layers = 2
    assert counts == [2 * layers, 0]  # and the kernel reads the longest document, a tensor
    found, told = given[0], given[-1]
    assert isinstance(found["max_seqlen_q"], torch.Tensor) and told["max_seqlen_q"] == 64
    assert found["cu_seqlens_q"].tolist() == told["cu_seqlens_q"].tolist()[:6]
