"""The task of a causal language model, by settings: fine-tuned or from scratch, texts or chats."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from ..task import Data
from .base import DENSE, TokenTask
from .card import model_card
from .chat import ChatWriter
from .columns import USUAL, Columns, Kind
from .ends import end_with
from .loss import FusedHead, why_not_fusible
from .meta_model import CAUSAL, small_copy
from .packing import LongDocuments, Packing, Rows, collate
from .pretrained import checkpoint_activations
from .problems import setting_error
from .quantized import training_device
from .separation import check_separation, small_batch
from .sources import Row
from .templates import ALPACA_INPUT, read_template
from .tokens import Encoder, vocabulary_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CausalLM(TokenTask):
    """Predict the next token of texts, or the assistant's words in conversations.

    Args:
        data: the training data: a file, a folder, a pattern, hf:NAME, or a list of these
            (``sources.py``).
        evaluation: the evaluation data, named in the same way, or the share of the documents of
            ``data`` that is kept for evaluation, such as 0.05, or several sets by name.
        model: a folder of safetensors or a name on the Hub.
        config: instead of ``model``, for training from scratch: ``model_type`` and keys of that
            configuration.
        tokenizer: a folder, a tokenizer.json, a name on the Hub. By default the model's.
        text_column: the column to train on.
        messages_column: the column with conversations: a list of {role, content}. The assistant's
            words are trained on. Columns that are not named are found by their usual names
            (``columns.py``).
        prompt_column, completion_column: the columns with a question and the answer, as text or as
            messages. The answer is trained on.
        template: the chat template: a Jinja file, the text of a template, a name (chatml, alpaca,
            or a name of the tokenizer's templates). By default the tokenizer's.
        chat_template_kwargs: arguments of the template beside the messages. Those of a row override
            these.
        turns: ``each`` trains on each turn of a conversation as the template writes the turn when
            it is the last. By default the conversation is written and trained on once, as a whole.
        sequence_length: positions of a row.
        packing: ``best_fit`` fills rows with documents, which do not see each other. ``none`` gives
            each document a row.
        long_documents: documents that are longer than a row are ``split`` into pieces, ``cut`` off
            behind the first piece, or ``refuse``d.
        adapter: low-rank adapters. All other weights are frozen. {} for the defaults.
        attention: transformers' name: sdpa, eager, flash_attention_2 (on GPUs). By default the
            choice of the model's class.
        activation_checkpointing: recompute the activations of each layer (2: of every second layer)
            in the backward pass, instead of keeping them.
        loss: ``fused`` computes logits and their gradients in chunks, ``plain`` all at once.
            ``auto`` takes chunks if the logits of a micro-batch are more than 512 MiB in float32,
            and the model's class allows chunks.
        ignore_tensors: patterns of tensors in the model's files that are not loaded, such as
            ``mtp.*``.
        cache_dir: for tokens and converted files, a folder for each content.
    """

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

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        train, evaluation = self.parts(
            self.tokenized,
            partial(
                Rows,
                length=self.sequence_length,
                packing=self.packing,
                long_documents=self.long_documents,
                cache=self.cache_dir,
            ),
        )
        tokenizer = self.load_tokenizer()
        batch = partial(
            collate,
            length=None if self.packing == "none" else self.sequence_length,
            padding=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
        )
        return Data(train=train, evaluation=evaluation, collate=batch, version=train.version)

    def encoder(self, row: Row) -> Encoder:
        usual: list[tuple[Kind, tuple[str, ...]]] = [("text", (self.text_column,)), *USUAL]
        if self.messages_column:
            usual = [("messages", (self.messages_column,))]
        elif self.prompt_column:
            usual = [("prompt", (self.prompt_column, str(self.completion_column)))]
        elif "rejected" in row or isinstance(row.get("label"), bool):
            raise setting_error(
                "data",
                ", ".join(row),
                "are preferences, and CausalLM learns every answer; keep the good answers, and "
                "name prompt_column and completion_column, or messages_column",
            )
        fitting = (given for given in usual if None not in map(row.get, given[1]))
        columns = Columns(
            *next(fitting, usual[0]),
            self.turns == "each",
            self.chat_template_kwargs or {},
            ALPACA_INPUT if self.template == "alpaca" else "\n\n",
        )

        tokenizer = self.load_tokenizer()
        end = tokenizer.eos_token_id
        self.memory.setdefault("ends", [] if end is None else [end])
        writer = None
        if columns.are_chats(row):
            text, name = read_template(tokenizer, self.template)
            self.note(f"template: {name}")
            writer = ChatWriter(tokenizer, text)
            # Conversations beside texts decide the end of a text.
            self.memory["ends"] = writer.turn_ends()
            if not self.memory["ends"]:
                self.note("template: no token ends a turn of the assistant")
        return Encoder(tokenizer, columns, writer, self.bad_rows)

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        is_known = self.attention in (*DENSE, "flash_attention_2")
        if torch.are_deterministic_algorithms_enabled() and not is_known:
            raise setting_error(
                "attention",
                self.attention,
                "is not known to be deterministic; set flash_attention_2 or sdpa",
            )
        tokenizer = self.load_tokenizer()
        model = self.load_model(vocabulary_of(tokenizer))
        self.note(*end_with(model, self.memory.get("ends", ()), tokenizer))
        if self.activation_checkpointing:
            checkpoint_activations(model, self.activation_checkpointing)

        # The model has no values yet. A small copy with random values is tried.
        probe = small_copy(model).to("cpu" if self.attention in DENSE else training_device())
        if self.packing == "best_fit":
            check_separation(probe, self.inputs)
        adapted = self.adapted(model, "CAUSAL_LM")
        if self.loss == "plain":
            return adapted  # type: ignore[no-any-return]

        head = adapted.get_output_embeddings()
        reason = why_not_fusible(probe, self.inputs(small_batch(probe)))
        if not reason and type(head) is not nn.Linear:
            reason = "the last layer has an adapter"
        if not reason:
            head.__class__ = FusedHead
            head.always = self.loss == "fused"
        elif self.loss == "fused":
            raise setting_error("loss", "fused", f"{reason}; set plain")
        else:
            self.note(f"loss: all logits at once, since {reason}")
        return adapted  # type: ignore[no-any-return]

    def load_model(self, vocabulary: int) -> Any:
        """Build the transformers model. A subclass may override this method.

        Args:
            vocabulary: number of tokens of the tokenizer.
        """
        end = self.load_tokenizer().eos_token_id
        # torch never trains the embedding of a pad_token_id, which is often the end of a text.
        return self.build(CAUSAL, bos_token_id=None, eos_token_id=end, pad_token_id=None)

    # -- training ---------------------------------------------------------------------------------

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        # No mask: with a mask, models ignore the positions.
        if self.packing == "none":
            # Padding is behind the row's only document, which does not see the padding.
            return {"input_ids": batch["input_ids"]}

        # For flash kernels transformers 5.23 finds the documents in the positions of a single row
        # only. All rows as a single long row have the same loss.
        rows = len(batch["input_ids"]) if self.attention in DENSE else 1
        return {name: batch[name].reshape(rows, -1) for name in ("input_ids", "position_ids")}

    # -- export -----------------------------------------------------------------------------------

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer, with the chat template and the end of a text of this training."""
        tokenizer = copy.deepcopy(self.load_tokenizer())
        ends = self.memory.get("ends")
        if ends and tokenizer.eos_token_id not in ends:
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(ends[0])
        if self.template:
            tokenizer.chat_template, _ = read_template(tokenizer, self.template)
        tokenizer.save_pretrained(directory)

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, "text-generation", "Causal language model")
