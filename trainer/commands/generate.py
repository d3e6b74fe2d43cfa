"""``trainer generate MODEL --prompt TEXT``: continue a text, with an exported model or adapter."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .usage import local_text


def run(argv: Sequence[str]) -> int:
    """Print what the model writes after each prompt, and return 0.

    Raises:
        ConfigError: the model or its tokenizer cannot be loaded.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    prompts = [args.prompt] if args.prompts is None else _read_lines(parser, args.prompts)

    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no part of the answer
        texts = _generate(args, prompts)

    for prompt, text in zip(prompts, texts, strict=True):
        if args.prompts is None:
            print(text)
        else:
            print(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainer generate", description=__doc__)
    parser.add_argument(
        "model", type=local_text, help="a folder such as RUN/model, of a model or of an adapter"
    )
    parser.add_argument("--base", help="the model of an adapter, where it is not where it was")
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", help="the text to continue")
    prompts.add_argument(
        "--prompts",
        type=local_text,
        metavar="FILE",
        help="of prompts, one a line; prints JSON lines",
    )
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is what a user says in a conversation"
    )
    parser.add_argument("--system", help="what the system says before it; only with --chat")
    parser.add_argument(
        "--max_new_tokens",
        type=int,
        default=64,
        help="at most; fewer where the model ends its text",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0: always the likeliest token"
    )
    parser.add_argument(
        "--top_p",
        type=float,
        default=1.0,
        help="draw from the likeliest tokens with this probability",
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at a temperature")

    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the command with exit code 2 where options are out of range or do not go together."""
    if args.temperature < 0 or args.max_new_tokens < 1:
        parser.error("--temperature must be at least 0, --max_new_tokens at least 1")
    if not 0 < args.top_p <= 1 or (args.top_p < 1 and not args.temperature):
        parser.error("--top_p must be above 0 and at most 1, and needs a --temperature")
    if args.system is not None and not args.chat:
        parser.error("--system needs --chat")


def _read_lines(parser: argparse.ArgumentParser, path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        parser.error(f"--prompts {path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        parser.error(f"--prompts {path}: cannot be read: no UTF-8 text")


def _generate(args: argparse.Namespace, prompts: Sequence[str]) -> list[str]:
    """Load the model, and return the text that it writes after each prompt."""
    import torch

    from ..language.adapters import load_adapted
    from ..language.tokens import load_tokenizer

    tokenizer = load_tokenizer(args.model, "model")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_adapted(args.model, args.base).to(device).eval()
    return [_answer(args, tokenizer, model, prompt) for prompt in prompts]


def _answer(args: argparse.Namespace, tokenizer: Any, model: Any, prompt: str) -> str:
    """Return the text that the model writes after one prompt."""
    import torch

    from ..language.ends import end_tokens

    ends = end_tokens(model.generation_config)
    if not ends and tokenizer.eos_token_id is not None:
        ends = [tokenizer.eos_token_id]
    sampling: dict[str, Any] = {"do_sample": False}
    if args.temperature:
        sampling = {"do_sample": True, "temperature": args.temperature, "top_p": args.top_p}

    # Seeded for each prompt, so that a text does not depend on the prompts before it.
    torch.manual_seed(args.seed)
    ids = torch.tensor([_tokens(args, tokenizer, prompt)], device=model.device)
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=args.max_new_tokens,
        use_cache=True,
        eos_token_id=ends or None,
        pad_token_id=tokenizer.eos_token_id or 0,  # without effect: there is one row
        **sampling,
    )
    new_ids = output[0, ids.shape[1] :]
    return str(tokenizer.decode(new_ids, skip_special_tokens=True))


def _tokens(args: argparse.Namespace, tokenizer: Any, prompt: str) -> list[int]:
    """Return the token ids of a prompt, with ``--chat`` as the turn of a user."""
    if args.chat:
        messages = []
        if args.system is not None:
            messages.append({"role": "system", "content": args.system})
        messages.append({"role": "user", "content": prompt})
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    ids = list(tokenizer(prompt)["input_ids"])
    # Some tokenizers end each text; the model would take that as the end of the prompt's.
    if ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    return ids
