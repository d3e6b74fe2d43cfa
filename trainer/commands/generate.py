"""``trainer generate MODEL --prompt TEXT``: write on from a prompt, with an exported model or
adapter.
"""

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
    """Print what the model writes; return 0.

    Raises:
        ConfigError: the model or its tokenizer cannot be loaded.
    """
    parser = argparse.ArgumentParser(prog="trainer generate", description=__doc__)
    parser.add_argument(
        "model", type=local_text, help="a folder such as RUN/model, of a model or of an adapter"
    )
    parser.add_argument("--base", help="the model of an adapter, where it is not where it was")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", help="the text to go on from")
    given.add_argument(
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
    args = parser.parse_args(argv)
    if args.temperature < 0 or args.max_new_tokens < 1:
        parser.error("--temperature must be at least 0, --max_new_tokens at least 1")
    if not 0 < args.top_p <= 1 or (args.top_p < 1 and not args.temperature):
        parser.error("--top_p must be above 0 and at most 1, and wants a --temperature")
    if args.system is not None and not args.chat:
        parser.error("--system wants --chat")
    prompts = [args.prompt] if args.prompts is None else _lines(parser, args.prompts)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is not our answer
        texts = _generate(args, prompts)
    for prompt, text in zip(prompts, texts, strict=True):
        print(
            text
            if args.prompts is None
            else json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False)
        )
    return 0


def _lines(parser: argparse.ArgumentParser, path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(
            f"--prompts {path}: cannot be read: {getattr(error, 'strerror', None) or 'no UTF-8 text'}"
        )


def _generate(args: argparse.Namespace, prompts: Sequence[str]) -> list[str]:
    import torch

    from ..language.adapters import load_adapted
    from ..language.tokens import load_tokenizer

    tokenizer = load_tokenizer(args.model, "model")
    model = (
        load_adapted(args.model, args.base)
        .to("cuda" if torch.cuda.is_available() else "cpu")
        .eval()
    )
    return [_answer(args, tokenizer, model, prompt) for prompt in prompts]


def _answer(args: argparse.Namespace, tokenizer: Any, model: Any, prompt: str) -> str:
    import torch

    from ..language.ends import end_tokens

    if args.chat:
        talk = [{"role": "system", "content": args.system}] if args.system is not None else []
        talk.append({"role": "user", "content": prompt})
        given = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
    else:
        given = tokenizer(prompt)["input_ids"]
        if given[-1:] == [
            tokenizer.eos_token_id
        ]:  # some tokenizers end each text, and this one is to go on
            given = given[:-1]
    drawn: dict[str, Any] = {"do_sample": False}
    if args.temperature:
        drawn = {"do_sample": True, "temperature": args.temperature, "top_p": args.top_p}
    torch.manual_seed(args.seed)
    ids = torch.tensor([given], device=model.device)
    ends = end_tokens(model.generation_config)
    if not ends and tokenizer.eos_token_id is not None:
        ends = [tokenizer.eos_token_id]
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=args.max_new_tokens,
        use_cache=True,
        eos_token_id=ends or None,
        pad_token_id=tokenizer.eos_token_id or 0,  # of batches only
        **drawn,
    )
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
