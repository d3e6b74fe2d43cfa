"""Conversations as text, and which message wrote which part of it.

A chat template goes through the messages in a loop. Before a template is compiled, each of its
loops is made to write a mark where it begins with an item and where it ends. A mark behind which a
message begins says whose text follows. The marks are taken out again, and the text is held against
what transformers renders: it must be the same.

So a conversation is rendered as a whole, as a template writes it that drops earlier thoughts,
merges messages or ends a text differently, and nothing has to be guessed from the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .templates import GENERATION

if TYPE_CHECKING:
    from jinja2 import Template, nodes

NOBODY = -1
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # Unicode keeps these two for such uses: no text has them
MARK = re.compile(f"{OPEN}([+-])(\\d+) (\\d*){CLOSE}")


class Part(NamedTuple):
    """A stretch of a rendered conversation: characters from ``start`` to ``end``.

    Args:
        message: by number, which wrote it; ``NOBODY``: the template itself.
    """

    message: int
    start: int
    end: int


class Unclear(Exception):
    """The text of a conversation cannot be divided among its messages."""


class Renderer:
    """A chat template and a tokenizer that knows its special tokens.

    Args:
        text: of the template.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokenizer, self.text = tokenizer, text
        self.says_what_is_learnt = GENERATION.search(text) is not None  # with {% generation %}
        self._marked: Template | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        *,
        asks: bool = False,
    ) -> str:
        """Return a conversation as transformers renders it.

        Args:
            settings: what the template gets beside the messages, such as ``tools``.
            asks: end with what makes the assistant speak.
        """
        rendered = self.tokenizer.apply_chat_template(
            list(messages),
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=asks,
            **settings,
        )
        return str(rendered)

    def generated(
        self, messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
    ) -> tuple[str, list[Part]]:
        """Return a conversation as text, and the parts in it that stand between {% generation %}
        marks.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered: Any = render_jinja_template(
            conversations=[_without_nothing(messages)],
            chat_template=self.text,
            return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **settings},
        )
        [text], [spans] = rendered
        return text, [Part(NOBODY, start, end) for start, end in spans]

    def parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
        *,
        asks: bool = False,
    ) -> tuple[str, list[Part]]:
        """Return a conversation as text, and its parts in order.

        Raises:
            Unclear: the template does something with its own output, so that marks in it change the
                text.
        """
        from transformers.utils.chat_template_utils import _alias_reasoning_fields

        if self._marked is None:
            self._marked = _compile_with_marks(self.text)
        given = _alias_reasoning_fields(_without_nothing(messages))
        numbers = {id(message): number for number, message in enumerate(given)}
        current: dict[int, int | None] = {}  # of each loop that came to a message, where it is

        def enter(loop: int, item: object) -> str:
            number = numbers.get(id(item))
            if number is None and loop not in current:
                return ""
            current[loop] = number
            return f"{OPEN}+{loop} {'' if number is None else number}{CLOSE}"

        def assign(loop: int, item: object) -> str:
            # The first message that a loop over numbers takes is the one that it is at.
            return enter(loop, item) if current.get(loop) is None and id(item) in numbers else ""

        def leave(loop: int) -> str:
            return f"{OPEN}-{loop} {CLOSE}" if loop in current else ""

        beside = {**self.tokenizer.special_tokens_map, "tools": None, "documents": None, **settings}
        marked = self._marked.render(
            messages=given,
            add_generation_prompt=asks,
            enter_item=enter,
            assign_item=assign,
            leave_loop=leave,
            **beside,
        )
        text, parts = _take_marks_out(marked, [message.get("role") for message in given])
        if text != self.render(messages, settings, asks=asks):
            raise Unclear
        return text, parts

    def opening(self, before: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
        """Return what is written to make the assistant speak behind some messages."""
        answered = self.render(before, settings)
        asked = self.render(before, settings, asks=True)
        if asked.startswith(answered) and asked != answered:
            return asked[len(answered) :]
        # Of a template that ends the text otherwise (Phi-3's), or always asks: what no message
        # wrote at its end.
        _, parts = self.parts(before, settings, asks=True)
        if len(parts) < 2 or parts[-1].message != NOBODY:
            return asked[length_alike(answered, asked) :]
        at_end = asked[parts[-1].start :]
        ends_text = asked == answered and at_end.lstrip().startswith(
            self.tokenizer.eos_token or at_end
        )
        return "" if ends_text else at_end


def length_alike(one: str, other: str) -> int:
    """Count the characters with which two texts begin alike."""
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return at
    return min(len(one), len(other))


def _without_nothing(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Leave out keys without a value, as transformers does before it renders."""
    return [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]


def _compile_with_marks(text: str) -> Template:
    """Compile a template whose loops write marks."""
    from jinja2 import nodes
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # The environment of transformers, with its tags, filters and sandbox.
    environment = _compile_jinja_template(text).environment
    tree = environment.parse(text)
    loops = [loop for loop in tree.find_all(nodes.For) if isinstance(loop.target, nodes.Name)]
    for number, loop in enumerate(loops):
        for body in _bodies(loop, nodes):
            for at in reversed(range(len(body))):
                target = getattr(body[at], "target", None)
                if isinstance(body[at], nodes.Assign) and isinstance(target, nodes.Name):
                    item = nodes.Name(target.name, "load")
                    body.insert(at + 1, _write(nodes, "assign_item", nodes.Const(number), item))
        assert isinstance(loop.target, nodes.Name)
        item = nodes.Name(loop.target.name, "load")
        loop.body.insert(0, _write(nodes, "enter_item", nodes.Const(number), item))
    numbers = {id(loop): number for number, loop in enumerate(loops)}
    for body in _bodies(tree, nodes):
        for at in reversed(range(len(body))):
            number_of = numbers.get(id(body[at]))
            if number_of is not None:
                body.insert(at + 1, _write(nodes, "leave_loop", nodes.Const(number_of)))
    tree.set_environment(environment)
    code = environment.compile(tree)
    compiled: Template = environment.template_class.from_code(
        environment, code, environment.make_globals(None)
    )
    return compiled


def _write(nodes: Any, function: str, *arguments: nodes.Expr) -> nodes.Output:
    """Return the statement ``{{ function(*arguments) }}``."""
    call = nodes.Call(nodes.Name(function, "load"), list(arguments), [], None, None)
    return nodes.Output([call])  # type: ignore[no-any-return]


def _bodies(tree: nodes.Node, nodes: Any) -> list[list[Any]]:
    """List every list of statements in a template."""
    found = []
    for node in [tree, *tree.find_all(nodes.Node)]:
        for name in ("body", "else_"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                found.append(body)
    return found


def _take_marks_out(marked: str, roles: Sequence[object]) -> tuple[str, list[Part]]:
    """Return a text without its marks, and its parts.

    In a loop over the messages within one of them (a search for a call's name) that one writes. But
    what a tool answers is the tool's, also where it is written with the call.
    """
    parts: list[Part] = []
    pieces: list[str] = []
    around: list[tuple[int, int]] = []  # loops that we are in, each with the message that it is at
    position = at = 0

    def add(piece: str) -> None:
        nonlocal position
        if not piece:
            return
        pieces.append(piece)
        message = around[-1][1] if around else NOBODY
        start, position = position, position + len(piece)
        if parts and parts[-1].message == message:
            parts[-1] = Part(message, parts[-1].start, position)
        else:
            parts.append(Part(message, start, position))

    for mark in MARK.finditer(marked):
        add(marked[at : mark.start()])
        at = mark.end()
        loop = int(mark[2])
        inside = [number for number, _ in around]
        if loop in inside:
            del around[inside.index(loop) :]
        if mark[1] == "+":
            outer = around[-1][1] if around else NOBODY
            number = int(mark[3]) if mark[3] else outer
            inner_writes = outer == NOBODY or (
                roles[outer] == "assistant" and roles[number] == "tool"
            )
            around.append((loop, number if inner_writes else outer))
    add(marked[at:])
    return "".join(pieces), parts
