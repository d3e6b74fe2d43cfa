"""The task of a causal language model, by settings: fine-tuned or from scratch, texts or chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..errors import ConfigError
from ..private.transformers import attention_of
from ..strategies.meta_device import is_on_meta
from ..task import Data
from ..text import size
from .adapters import add_adapter
from .attention import (
    DENSE,
    VARLEN,
    borders_for,
    check_named,
    launched_on,
    register,
    varlen_copy,
    why_not_by_default,
)
from .base import Documents, TokenTask, as_evaluation
from .card import model_card
from .columns import Columns
from .ends import end_with, with_end
from .loss import FIT, FusedHead, fuse_head, rows_that_fit
from .meta_model import small_copy
from .packing import Collate, LongDocuments, Packing, Rows
from .pretrained import check_sizes, checkpoint_activations, from_configuration
from .problems import setting_error
from .quantized import training_device
from .separation import check_separation, small_batch
from .sources import Row
from .templates import ChatTemplate, read_template
from .turn_end import notice_of_turn_end, turn_ends

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class CausalLM(TokenTask):
    """Predict the next token of texts, or what the assistant says in conversations.

    Args:
        data: what to train on: a file, a folder, a pattern, hf:NAME, or a list of these
            (``sources.py``).
        evaluation: what to evaluate on, named in the same way; or the share of the documents of
            ``data`` that is kept for it, such as 0.05.
        model: a folder of safetensors, a folder with a GGUF file, or a name on the Hub.
        config: instead of ``model``, for training from scratch: ``model_type`` and keys of that
            configuration.
        tokenizer: a folder, a tokenizer.json, a name on the Hub; by default the model's.
        text_column: of rows with columns, the one that is trained on.
        messages_column: of rows that are conversations: a list of {role, content}. What the
            assistant says is trained on. Columns that are not named are found where they have their
            usual names (``columns.py``).
        prompt_column, completion_column: of rows with a question and its answer, as text or as
            messages. The answer is trained on.
        template: what writes conversations: a Jinja file, its text, a name (chatml, alpaca, or one
            of the tokenizer's); by default the tokenizer's chat template.
        chat_template_kwargs: what the template gets beside the messages; those of a row come
            first.
        turns: ``each`` trains on each turn of a conversation as the template writes it while it is
            the last one; by default a conversation is trained on once, as it is at its end.
        sequence_length: positions of a row.
        packing: ``best_fit`` fills rows with documents, which do not see each other; ``none`` gives
            each document a row.
        long_documents: longer than a row: ``split`` into pieces, ``cut`` off behind the first, or
            ``refuse``.
        adapter: low-rank adapters, which alone are trained; {} for the defaults.
        attention: as transformers calls it: sdpa, eager, flash_attention_2; or ``varlen``, torch's
            flash kernel on each packed document. By default ``varlen`` on GPUs in 16 bits where
            rows are packed and the model can, and else what the model's class takes.
        activation_checkpointing: recompute the activations of each layer (2: of every second one)
            in the backward pass, instead of keeping them.
        loss: ``fused`` computes logits and their gradients in chunks, ``plain`` all at once;
            ``auto`` takes chunks where the logits of a micro-batch are more than 512 MiB in
            float32, and the model's class allows it.
        ignore_tensors: patterns of tensors in the model's files that are not loaded, such as
            ``mtp.*``.
        cache_dir: where tokens are kept, one folder for each content.
    """

    packs: ClassVar[bool] = True

    messages_column: str | None = None
    prompt_column: str | None = None
    completion_column: str | None = None
    template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    turns: Literal["each"] | None = None
    sequence_length: Annotated[int, Field(ge=2)] = 1024
    packing: Packing = "best_fit"
    long_documents: LongDocuments = "split"
    activation_checkpointing: bool | Annotated[int, Field(ge=1)] = False
    loss: Literal["auto", "plain", "fused"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.prompt_column is None) != (self.completion_column is None):
            raise ValueError("prompt_column and completion_column go together")
        if self.messages_column is not None and self.prompt_column is not None:
            raise ValueError(
                "give messages_column, or prompt_column and completion_column, not both"
            )
        if self.attention == VARLEN and self.packing == "none":
            raise ValueError(
                f"attention: {VARLEN} keeps packed documents apart, and packing: none packs none; "
                "leave it out: sdpa takes torch's flash kernel there"
            )

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        train_documents, evaluation_documents = self.documents()
        sets = {name: self._rows(documents) for name, documents in evaluation_documents.items()}
        train = self._rows(train_documents)
        return Data(
            train=train,
            evaluation=as_evaluation(sets),
            collate=self._collate(),
            version=train.version,
        )

    def columns(self, row: Row | None) -> tuple[Columns, ChatTemplate | None]:
        named = Columns(
            text=self.text_column,
            messages=self.messages_column,
            prompt=self.prompt_column,
            completion=self.completion_column,
            each_turn=self.turns == "each",
            settings=self.chat_template_kwargs,
        )
        columns = named.found_in(row)
        tokenizer = self.load_tokenizer()

        if not columns.are_chats(row):
            end = tokenizer.eos_token_id
            self.memory.setdefault("ends", [] if end is None else [end])
            return columns, None

        template = read_template(tokenizer, self.template)
        self.memory.setdefault("ends", turn_ends(tokenizer, template))
        self.note(f"template: {template}", *notice_of_turn_end(tokenizer, template))
        return columns, template

    def _rows(self, documents: Documents) -> Rows:
        rows = Rows(
            documents.corpus,
            documents.chosen,
            length=self.sequence_length,
            packing=self.packing,
            long_documents=self.long_documents,
            cache=self.cache_dir,
            key=documents.key,
        )
        self.memory[documents.key] = rows.fill
        return rows

    def _collate(self) -> Collate:
        tokenizer = self.load_tokenizer()
        padding = 0
        if tokenizer.pad_token_id is not None:
            padding = tokenizer.pad_token_id
        elif tokenizer.eos_token_id is not None:
            padding = tokenizer.eos_token_id

        packed = self.packing != "none"
        length = self.sequence_length if packed else None
        return Collate(length=length, padding=padding, borders=packed)

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        check_named(self.attention)
        register()
        vocabulary = self.vocabulary()
        model = self.load_model(vocabulary)
        check_sizes(model, vocabulary, self.tokenizer or self.model, self.sequence_length)
        model.config.architectures = [type(model).__name__]
        notice = end_with(model, self.memory.get("ends", ()), self.load_tokenizer())
        if notice:
            self.note(notice)
        if self.activation_checkpointing:
            checkpoint_activations(model, int(self.activation_checkpointing))

        probe = self._settle_attention(model)

        if self.adapter is not None:
            probe_is_model = probe is model
            model = add_adapter(model, self.adapter, self.memory.get("stored"))
            if probe_is_model:
                probe = model
                if self.adapter.quantize is not None:
                    # Its layers of 4 bits are on the GPU already, the others where they were.
                    probe.to(training_device())
            else:
                probe = add_adapter(probe, replace(self.adapter, quantize=None))

        if self.loss != "plain":
            self._fuse_head(model, probe)
        probe.to("cpu")
        return model  # type: ignore[no-any-return]

    def _settle_attention(self, model: Any) -> Any:
        """Choose the attention of packed rows, and prove that it keeps their documents apart.

        Returns:
            What is tried out further, where it can run: the model, or a small copy of a model
            without values.
        """
        if self.attention == VARLEN:
            return self._try_varlen(model)

        self.memory["attention"] = self.attention
        if self.packing == "best_fit" and self.attention is None:
            why_not = why_not_by_default()
            if not why_not:
                try:
                    return self._try_varlen(model)
                except ConfigError as error:
                    why_not, _, _ = error.problems[0].rule.partition("; set ")
            self.note(f"attention: {attention_of(model.config)} with a mask, since {why_not}")

        # A model without values cannot be tried out; a small copy with random ones can.
        probe = small_copy(model) if is_on_meta(model) else model
        probe.to("cpu" if self.attention in (None, *DENSE) else "cuda")
        if self.packing == "best_fit":
            check_separation(probe, self.inputs)
        return probe

    def _try_varlen(self, model: Any) -> Any:
        """Set ``varlen`` in a model, and try it out where the model will be trained.

        Raises:
            ConfigError: the model or the kernel cannot; the model stays as it was.
        """
        probe = varlen_copy(model)
        before = attention_of(model.config)
        device, _ = launched_on()
        model.set_attn_implementation(VARLEN)
        self.memory["attention"] = VARLEN
        try:
            check_separation(probe.to(device), self.inputs)
        except ConfigError as error:
            model.set_attn_implementation(before)
            self.memory["attention"] = before
            why_not, _, _ = error.problems[0].rule.partition("; set ")
            raise setting_error("attention", VARLEN, f"{why_not}; set sdpa") from None

        runs = "torch's flash kernel" if device == "cuda" else "on the CPU a plain loop"
        self.note(f"attention: {VARLEN}, {runs} on each document of a packed row, without a mask")
        return probe

    def _fuse_head(self, model: Any, probe: Any) -> None:
        """Make the model's last layer compute the loss, where that of ``probe`` can."""
        batch = small_batch(probe)
        why_not = fuse_head(probe, self.inputs(batch), batch["labels"])
        if why_not and self.loss == "fused":
            raise setting_error("loss", self.loss, f"{why_not}; set plain")
        if why_not:
            self.note(f"loss: all logits at once, since {why_not}")
            return

        head = model.get_output_embeddings()
        head.__class__ = FusedHead
        head.always = self.loss == "fused"
        if not head.always:
            most = rows_that_fit(self.sequence_length, head.out_features)
            self.note(
                f"loss: all logits at once up to micro_batch_size {most:,} ({size(FIT)}), "
                "in chunks above it"
            )

    def load_model(self, vocabulary: int) -> Any:
        """Build the transformers model, with its values or without; a subclass may override it.

        Args:
            vocabulary: number of tokens.
        """
        if self.config is None:
            return self.build_pretrained("AutoModelForCausalLM")

        defaults = {
            "vocab_size": vocabulary,
            "bos_token_id": None,
            "eos_token_id": self.load_tokenizer().eos_token_id,
            # torch never trains the embedding of a pad_token_id, and it is often the end of a text
            # as well.
            "pad_token_id": None,
        }
        return from_configuration(self.config, self.own_attention, defaults)

    # -- training ---------------------------------------------------------------------------------

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        # No mask: with one, models overlook the positions.
        if self.packing == "none":
            # Padding is behind the row's only document, which does not see it.
            return {"input_ids": batch["input_ids"]}

        inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
        attention = self.memory.get("attention", self.attention)
        if attention in (None, *DENSE):
            return inputs
        if attention == VARLEN:
            return inputs | borders_for(batch)
        # Layers that are not told the borders find them in positions, but in a single row only
        # (transformers 5.23). All rows as one long row are the same.
        long_row = {name: tensor.reshape(1, -1) for name, tensor in inputs.items()}
        return long_row | borders_for(batch)

    # -- export -----------------------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer, with the template and the end of a text that were trained on."""
        tokenizer = with_end(self.load_tokenizer(), self.memory.get("ends", ()))
        if self.template is not None:
            tokenizer.chat_template = read_template(tokenizer, self.template).text
        tokenizer.save_pretrained(directory)

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, "text-generation", "Causal language model")
