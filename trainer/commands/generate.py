"""``trainer generate MODEL --prompt TEXT``: write on from a prompt, with an exported model or adapter."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from .usage import local_text


def run(argv: Sequence[str]) -> int:
    """Print what the model writes; return 0.

    Raises:
        ConfigError: the model or its tokenizer cannot be loaded.
    """
    parser = argparse.ArgumentParser(prog="trainer generate", description=__doc__)
    parser.add_argument("model", type=local_text, help="a folder such as RUN/model, of a model or of an adapter")
    parser.add_argument("--prompt", required=True, help="the text to go on from")
    parser.add_argument("--chat", action="store_true", help="the prompt is what a user says in a conversation")
    parser.add_argument("--max_new_tokens", type=int, default=64, help="at most; fewer where the model ends its text")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest token")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at a temperature")
    args = parser.parse_args(argv)
    if args.temperature < 0 or args.max_new_tokens < 1:
        parser.error("--temperature must be at least 0, --max_new_tokens at least 1")
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is not our answer
        text = _generate(args)
    print(text)
    return 0


def _generate(args: argparse.Namespace) -> str:
    import torch

    from ..language.adapters import load_adapted
    from ..language.tokens import load_tokenizer

    tokenizer = load_tokenizer(args.model, "model")
    model = load_adapted(args.model).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    if args.chat:
        talk = [{"role": "user", "content": args.prompt}]
        given = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    else:
        given = tokenizer(args.prompt, return_tensors="pt")
    drawn = {"do_sample": True, "temperature": args.temperature} if args.temperature else {"do_sample": False}
    torch.manual_seed(args.seed)
    ids = given["input_ids"].to(model.device)
    end = model.generation_config.eos_token_id
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=args.max_new_tokens,
        use_cache=True,
        eos_token_id=tokenizer.eos_token_id if end is None else end,
        pad_token_id=tokenizer.eos_token_id or 0,  # of batches only
        **drawn,
    )
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
