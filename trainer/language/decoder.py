"""The base of the tasks on a decoder: a chat template, the model, the last layer, the export."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from .base import DENSE, TokenTask
from .chat import ChatWriter, TextWriter
from .columns import Columns
from .ends import end_with
from .loss import fuse, why_not_fusible
from .model_files import CAUSAL, small_copy
from .packing import collate
from .pretrained import checkpoint_activations
from .problems import setting_error
from .quantized import training_device
from .separation import check_separation, small_batch
from .sources import Row
from .templates import read_template
from .tokens import Encoder
from .trial import inputs_of_trial, why_not
from .varlen import NAME, attend_by, collate_documents, with_documents

if TYPE_CHECKING:
    from torch import Tensor

LossMemory = Literal["auto", "plain", "fused"]


@dataclass(frozen=True, kw_only=True)
class DecoderTask(TokenTask):
    """A task on a causal language model."""

    template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    sequence_length: Annotated[int, Field(ge=2)] = 1024
    activation_checkpointing: bool | Annotated[int, Field(ge=1)] = False

    # State, which ``keep`` changes.
    ends: ClassVar[list[int] | None] = None  # the tokens that end texts
    has_mask: ClassVar[bool] = False  # which keeps documents apart

    def encoder_of(self, columns: Columns, row: Row, kind: type[Encoder] = Encoder) -> Encoder:
        """Return the encoder of a source, whose first row decides on a chat template."""
        tokenizer = self.load_tokenizer()
        end = tokenizer.eos_token_id
        if self.ends is None:
            self.keep(ends=[] if end is None else [end])
        writer: ChatWriter | TextWriter = TextWriter()
        if columns.are_chats(row):
            text, name = read_template(tokenizer, self.template)
            self.note(f"template: {name}")
            writer = ChatWriter(tokenizer, text)
            # Conversations beside texts decide the end of a text.
            self.keep(ends=writer.turn_ends())
            if not self.ends:
                self.note("template: no token ends a turn of the assistant")
        return kind(tokenizer, columns, writer, self.bad_rows)

    @property
    def padding(self) -> int:
        """Return the token of padded positions."""
        tokenizer = self.load_tokenizer()
        return tokenizer.pad_token_id or tokenizer.eos_token_id or 0

    # -- documents --------------------------------------------------------------------------------

    @property
    def takes_documents(self) -> bool:
        """Return whether batches have the boundaries of their documents."""
        if self.processes.size > 1 or self.attention not in DENSE:
            return True
        if self.plan is None or self.attention or self.has_mask:
            return False
        in_16_bits = self.plan.device == "cuda" and self.plan.mixed_precision != "no"
        return in_16_bits and self.packs and self.computes_parts

    @property
    def packs(self) -> bool:
        """Return whether a row holds several documents."""
        return False

    def collate_rows(
        self, rows: Sequence[dict[str, Tensor]], *, length: int | None = None
    ) -> dict[str, Any]:
        """Return a batch of rows, of a fixed length or of that of the longest row."""
        if not self.takes_documents:
            return collate(rows, padding=self.padding, length=length)
        return collate_documents(
            rows,
            padding=self.padding,
            length=length,
            parts=self.processes.size,
            # A method of a subclass may need all columns of a row.
            leaves_out=length is None and self.computes_parts,
        )

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        if "boundaries" in batch:
            return self.processes.inputs(batch)
        # The positions tell transformers the documents of a row. No mask: with a mask, models
        # ignore positions. Padding is behind a row's only document, which does not see the padding.
        names = ("input_ids", "position_ids") if self.packs else ("input_ids",)
        return {name: batch[name] for name in names}

    def computed_tokens(self, batch: Any) -> int:
        return len(batch["places"]) if "places" in batch else super().computed_tokens(batch)

    # -- model ------------------------------------------------------------------------------------

    def build_decoder(self, loss: LossMemory) -> Any:
        """Build the model with its adapters, and a last layer that may compute the loss."""
        is_known = self.attention in (*DENSE, NAME, "flash_attention_2")
        if torch.are_deterministic_algorithms_enabled() and not is_known:
            raise setting_error(
                "attention",
                self.attention,
                "is not known to be deterministic; set flash_attention_2 or sdpa",
            )
        tokenizer = self.load_tokenizer()
        model = self.load_model()
        text = model.config.get_text_config()
        if getattr(text, "output_router_logits", 0) and getattr(text, "router_aux_loss_coef", 1):
            raise setting_error(
                "model",
                self.model,
                "the loss of the routers is no mean over tokens, so that the curve would depend on "
                "micro_batch_size; set model_config: {output_router_logits: false}",
            )
        self.note(*end_with(model, self.ends or (), tokenizer))
        checkpoint_activations(model, self.activation_checkpointing)

        # The model has no values yet. A small copy with random values is tried.
        probe = small_copy(model)
        if not (self.takes_documents and self._chooses_documents(model, probe)):
            probe.to("cpu" if self.attention in DENSE else training_device())
        if self.packs:
            check_separation(probe, self._trial_inputs)
        adapted = self.adapted(model, "CAUSAL_LM")
        if loss == "plain":
            return adapted

        head = adapted.get_output_embeddings()
        inputs = self._trial_inputs(small_batch(probe))
        reason = why_not_fusible(probe, inputs) or fuse(head, always=loss == "fused")
        if reason:
            if loss == "fused":
                raise setting_error("loss", "fused", f"{reason}; set plain")
            self.note(f"loss: all logits at once, since {reason}")
        return adapted

    def _chooses_documents(self, model: Any, probe: Any) -> bool:
        """Let a model attend within documents, if its small copy proves that the model can.

        Raises ``ConfigError`` if the model cannot, and a setting asks for it.
        """
        size, name = self.processes.size, type(model).__name__
        if self.attention in (None, NAME):
            reason = why_not(probe, size)
        elif size == 1:
            return False  # another kernel, which takes the same boundaries
        else:
            reason = f"it has attention: {self.attention}"

        if not reason:
            attend_by(model, self.processes)
            self.note(f"attention: {NAME}, within documents, without a mask")
            return True
        if size > 1:
            rule = f"{name} cannot be computed in parts: {reason}"
            raise self.plan.origin("context_parallel").error(rule, size)
        if self.attention:
            raise setting_error("attention", NAME, f"{name}: {reason}; leave it out")
        self.keep(has_mask=True)
        self.note(f"attention: a mask keeps documents apart, since {name}: {reason}")
        return False

    def _trial_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the model for a small batch of packed rows."""
        if self.processes.size > 1:
            return inputs_of_trial(batch)
        return self.inputs(with_documents(batch) if self.takes_documents else batch)

    def load_model(self) -> Any:
        """Build the transformers model. A subclass may override this method."""
        end = self.load_tokenizer().eos_token_id
        # torch never trains the embedding of a pad_token_id, which is often the end of a text.
        return self.build(CAUSAL, bos_token_id=None, eos_token_id=end, pad_token_id=None)

    # -- export -----------------------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer, with the chat template and the end of a text of this training."""
        tokenizer = copy.deepcopy(self.load_tokenizer())
        if self.ends and tokenizer.eos_token_id not in self.ends:
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(self.ends[0])
        if self.template:
            tokenizer.chat_template, _ = read_template(tokenizer, self.template)
        tokenizer.save_pretrained(directory)
