"""The task of a causal language model, by settings alone: fine-tuned or from scratch, on text or
conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..strategies.meta_device import is_on_meta
from ..task import Data
from ..text import size
from .adapters import add_adapter
from .base import TokenTask
from .card import model_card
from .columns import Columns
from .ends import end_with, with_end
from .meta_model import small_copy
from .packing import Collate, LongDocuments, Packing, Rows
from .pretrained import check_sizes, checkpoint_activations, from_configuration
from .problems import setting_error
from .sources import Row
from .templates import ChatTemplate, read_template
from .tokens import Corpus
from .turn_end import notice_of_turn_end, turn_ends

if TYPE_CHECKING:
    from torch import Tensor, nn

DENSE = (
    "sdpa",
    "eager",
    "flex_attention",
)  # attention that tells documents apart in each row of a batch


@dataclass(frozen=True, kw_only=True)
class CausalLM(TokenTask):
    """Predict the next token of documents, or what the assistant says in conversations.

    Args:
        data: what to learn from: a file, a folder, a pattern, hf:NAME, or a list of these
            (``sources.py``).
        evaluation: what to measure on, named in the same way; or the share of the documents of
            ``data`` that is kept for it, such as 0.05.
        model: a folder of safetensors, a folder with a GGUF file, or a name on the Hub.
        config: instead of ``model``, for a start from scratch: ``model_type`` and keys of that
            configuration.
        tokenizer: a folder, a tokenizer.json, a name on the Hub; by default the model's.
        text_column: of rows with columns, what is learnt.
        messages_column: of rows that are conversations: a list of {role, content}. What the
            assistant says is learnt. Columns that are not named are found where they have their
            usual names (``columns.py``).
        prompt_column, completion_column: of rows with a question and its answer, as text or as
            messages. The answer is learnt.
        template: what writes conversations: a Jinja file, its text, a name (chatml, alpaca, or one
            of the tokenizer's); by default the tokenizer's chat template.
        chat_template_kwargs: what the template gets beside the messages; those of a row lie over
            them.
        turns: ``each`` learns each turn of a conversation as the template writes it while it is the
            last one; by default a conversation is learnt once, as it stands at its end.
        sequence_length: positions of a row.
        packing: ``best_fit`` puts documents into rows that are full, each for itself; ``none``
            gives each a row.
        long_documents: longer than a row: ``split`` into pieces, ``cut`` off behind the first, or
            ``refuse``.
        adapter: low-rank adapters, of which alone is learnt; {} for the defaults.
        attention: as transformers calls it: sdpa, eager, flash_attention_2; by default what the
            model's class takes.
        activation_checkpointing: compute the activations of each layer (2: of every second one)
            anew in the backward pass, instead of keeping them.
        loss: ``fused`` computes logits and their gradients in chunks, ``plain`` all at once;
            ``auto`` takes chunks where the logits of a micro-batch are more than 512 MiB in
            float32, and the model's class allows it.
        ignore_tensors: patterns of tensors in the model's files that the model is not to have, such
            as ``mtp.*``.
        cache_dir: tokens are kept there, one folder for each content.
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
        if self.messages_column is not None and self.prompt_column is not None:
            raise ValueError(
                "give messages_column, or prompt_column and completion_column, not both"
            )

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        train, evaluation = self.documents()
        measured = None if evaluation is None else self._rows(*evaluation)
        rows = self._rows(*train)
        return Data(train=rows, evaluation=measured, collate=self._collate(), version=rows.version)

    def columns(self, row: Row | None) -> tuple[Columns, ChatTemplate | None]:
        named = Columns(
            text=self.text_column,
            messages=self.messages_column,
            prompt=self.prompt_column,
            completion=self.completion_column,
            each_turn=self.turns == "each",
            settings=self.chat_template_kwargs,
        )
        columns, tokenizer = named.found_in(row), self.load_tokenizer()
        if not columns.are_chats(row):
            self.memory.setdefault(
                "ends", [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
            )
            return columns, None
        template = read_template(tokenizer, self.template)
        self.memory.setdefault("ends", turn_ends(tokenizer, template))
        self.note(f"template: {template}", *notice_of_turn_end(tokenizer, template))
        return columns, template

    def _rows(self, key: str, corpus: Corpus, chosen: Any) -> Rows:
        rows = Rows(
            corpus,
            chosen,
            length=self.sequence_length,
            packing=self.packing,
            long_documents=self.long_documents,
            cache=self.cache_dir,
            key=key,
        )
        self.memory[key] = rows.fill
        return rows

    def _collate(self) -> Collate:
        tokenizer = self.load_tokenizer()
        filler = next(
            (one for one in (tokenizer.pad_token_id, tokenizer.eos_token_id) if one is not None), 0
        )
        return Collate(
            length=None if self.packing == "none" else self.sequence_length, filler=filler
        )

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        import torch

        from .separation import check_separation, small_batch

        on_gpu = self.attention not in (None, *DENSE)
        if on_gpu and not torch.cuda.is_available():
            raise setting_error(
                "attention",
                self.attention,
                f"runs on a GPU only; on the CPU one of {', '.join(DENSE)}",
            )
        vocabulary = self.vocabulary()
        model = self.load_model(vocabulary)
        check_sizes(model, vocabulary, self.tokenizer or self.model, self.sequence_length)
        model.config.architectures = [type(model).__name__]
        changed = end_with(model, self.memory.get("ends", ()), self.load_tokenizer())
        if changed:
            self.note(changed)
        if self.activation_checkpointing:
            checkpoint_activations(model, int(self.activation_checkpointing))
        # Something with values to try out, where that can be done.
        trial = small_copy(model) if is_on_meta(model) else model
        trial.to("cuda" if on_gpu else "cpu")
        if self.packing == "best_fit":
            check_separation(trial, self.inputs)
        if self.adapter is not None:
            adapted = add_adapter(model, self.adapter, self.memory.get("stored"))
            plain = replace(self.adapter, quantize=None)
            trial, model = adapted if trial is model else add_adapter(trial, plain), adapted
        if self.loss != "plain":
            self._fuse_head(model, trial, small_batch(trial))
        trial.to("cpu")
        return model  # type: ignore[no-any-return]

    def _fuse_head(self, model: Any, trial: Any, batch: Mapping[str, Tensor]) -> None:
        """Let the model's last layer compute the loss, where it does so in ``trial`` on a small
        batch.
        """
        from .loss import FIT, FusedHead, fuse_head, rows_that_fit

        why_not = fuse_head(trial, self.inputs(batch), batch["labels"])
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
                f"loss: all logits at once up to micro_batch_size {most:,} ({size(FIT)}), in chunks above it"
            )

    def load_model(self, vocabulary: int) -> Any:
        """Build the transformers model, without values or with them: the place for a subclass to
        bring another one.
        """
        if self.config is not None:
            # Of a pad_token_id torch would never train the embedding, and often it is the end of a
            # text as well.
            end = self.load_tokenizer().eos_token_id
            defaults = {
                "vocab_size": vocabulary,
                "bos_token_id": None,
                "eos_token_id": end,
                "pad_token_id": None,
            }
            return from_configuration(self.config, self.attention, defaults)
        return self.build_pretrained("AutoModelForCausalLM")

    # -- learning ---------------------------------------------------------------------------------

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # Without a mask, since beside one the positions would be overlooked.
        if (
            self.packing == "none"
        ):  # what fills a row up stands behind its one document, which does not see it
            return {"input_ids": batch["input_ids"]}
        given = {name: batch[name] for name in ("input_ids", "position_ids")}
        if self.attention in (None, *DENSE):
            return given
        # Flash attention looks at positions in a single row only (transformers 5.23); one long row
        # is the same.
        return {name: tensor.reshape(1, -1) for name, tensor in given.items()}

    def save_extras(self, directory: Path) -> None:
        """Write the tokenizer, with the template that was trained on and the end that was learnt."""
        tokenizer = with_end(self.load_tokenizer(), self.memory.get("ends", ()))
        if self.template is not None:
            tokenizer.chat_template = read_template(tokenizer, self.template).text
        tokenizer.save_pretrained(directory)

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, "text-generation", "Causal language model")
