"""Conversations as text, and which message wrote which part of it.

A chat template goes through the messages in a loop. Before the template is compiled, each of its
loops is changed so that it writes a mark where it begins an item, and one where it ends. From the
marks follows whose text is between them. Then the marks are removed, and the text must be equal to
what transformers renders without them.

So a conversation is rendered as a whole, also by templates that drop earlier thoughts, merge
messages or end a text differently, and nothing has to be guessed from the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..private.transformers import compile_template, with_reasoning_aliases
from .templates import GENERATION

if TYPE_CHECKING:
    from jinja2 import Template, nodes

Messages = Sequence[Mapping[str, Any]]

NOBODY = -1  # instead of a message's number
# A mark: + where a loop begins an item, - where it ends; the loop; the message that is its item.
# Unicode reserves the two characters around it for such uses: no text has them.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
MARK = re.compile(f"{OPEN}([+-])(\\d+) (\\d*){CLOSE}")


class Part(NamedTuple):
    """A part of a rendered conversation: characters from ``start`` to ``end``.

    Args:
        message: by number, which wrote it; ``NOBODY``: the template itself.
    """

    message: int
    start: int
    end: int


class Unclear(Exception):
    """The text of a conversation cannot be divided among its messages."""


class Renderer:
    """A chat template, with a tokenizer that knows its special tokens.

    Args:
        text: of the template.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text
        self.has_generation_marks = GENERATION.search(text) is not None
        self._with_marks: Template | None = None

    def render(
        self, messages: Messages, settings: Mapping[str, Any], *, generation_prompt: bool = False
    ) -> str:
        """Return a conversation as transformers renders it.

        Args:
            settings: what the template gets beside the messages, such as ``tools``.
            generation_prompt: end with what makes the assistant speak.
        """
        rendered = self.tokenizer.apply_chat_template(
            list(messages),
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **settings,
        )
        return str(rendered)

    def generated(self, messages: Messages, settings: Mapping[str, Any]) -> tuple[str, list[Part]]:
        """Return a conversation as text, and the parts of it inside of {% generation %} marks."""
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered: Any = render_jinja_template(
            conversations=[_without_none(messages)],
            chat_template=self.text,
            return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **settings},
        )
        [text], [spans] = rendered
        return text, [Part(NOBODY, start, end) for start, end in spans]

    def parts(
        self, messages: Messages, settings: Mapping[str, Any], *, generation_prompt: bool = False
    ) -> tuple[str, list[Part]]:
        """Return a conversation as text, and its parts in order.

        Raises:
            Unclear: the template processes its own output, so that marks in it change the text.
        """
        if self._with_marks is None:
            self._with_marks = _compile_with_marks(self.text)

        given = with_reasoning_aliases(_without_none(messages))
        beside = {**self.tokenizer.special_tokens_map, "tools": None, "documents": None, **settings}
        marked = self._with_marks.render(
            messages=given,
            add_generation_prompt=generation_prompt,
            **_functions_that_mark(given),
            **beside,
        )
        text, parts = _remove_marks(marked, [message.get("role") for message in given])
        if text != self.render(messages, settings, generation_prompt=generation_prompt):
            raise Unclear
        return text, parts

    def opening(self, before: Messages, settings: Mapping[str, Any]) -> str:
        """Return what is written to make the assistant speak behind some messages."""
        text = self.render(before, settings)
        prompted = self.render(before, settings, generation_prompt=True)
        if prompted.startswith(text) and prompted != text:
            return prompted[len(text) :]

        # Without the prompt the template writes another end of the text (Phi-3's), or it always
        # writes the prompt. Then the opening is what no message wrote at the end.
        _, parts = self.parts(before, settings, generation_prompt=True)
        if len(parts) < 2 or parts[-1].message != NOBODY:
            return prompted[common_prefix_length(text, prompted) :]

        at_end = prompted[parts[-1].start :]
        end_of_text = self.tokenizer.eos_token or at_end
        if prompted == text and at_end.lstrip().startswith(end_of_text):
            return ""
        return at_end


def common_prefix_length(first: str, second: str) -> int:
    """Count the characters with which two texts begin alike."""
    for position, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return position
    return min(len(first), len(second))


def _without_none(messages: Messages) -> list[dict[str, Any]]:
    """Remove keys without a value, as transformers does before it renders."""
    cleaned = []
    for message in messages:
        cleaned.append({key: value for key, value in message.items() if value is not None})
    return cleaned


# -- marks ----------------------------------------------------------------------------------------


def _functions_that_mark(messages: list[Any]) -> dict[str, Callable[..., str]]:
    """Return the functions that a template with marks calls, by their names in it.

    A loop writes nothing until its first item that is a message, so that loops over other things
    leave no marks.
    """
    numbers = {id(message): number for number, message in enumerate(messages)}
    current: dict[int, int | None] = {}  # of each loop that came to a message, where it is

    def enter_item(loop: int, item: object) -> str:
        number = numbers.get(id(item))
        if number is None and loop not in current:
            return ""
        current[loop] = number
        return f"{OPEN}+{loop} {'' if number is None else number}{CLOSE}"

    def assign_item(loop: int, item: object) -> str:
        # A loop over numbers is at the message that it assigns to a variable first.
        if current.get(loop) is None and id(item) in numbers:
            return enter_item(loop, item)
        return ""

    def leave_loop(loop: int) -> str:
        return f"{OPEN}-{loop} {CLOSE}" if loop in current else ""

    return {"enter_item": enter_item, "assign_item": assign_item, "leave_loop": leave_loop}


def _compile_with_marks(text: str) -> Template:
    """Compile a template whose loops write marks."""
    from jinja2 import nodes

    environment = compile_template(text).environment
    tree = environment.parse(text)
    loops = [loop for loop in tree.find_all(nodes.For) if isinstance(loop.target, nodes.Name)]

    for number, loop in enumerate(loops):
        for body in _bodies(loop):
            _mark_assignments(body, number)
        assert isinstance(loop.target, nodes.Name)
        loop.body.insert(0, _call("enter_item", number, loop.target.name))

    numbers = {id(loop): number for number, loop in enumerate(loops)}
    for body in _bodies(tree):
        _mark_ends(body, numbers)

    tree.set_environment(environment)
    code = environment.compile(tree)
    compiled: Template = environment.template_class.from_code(
        environment, code, environment.make_globals(None)
    )
    return compiled


def _mark_assignments(body: list[Any], loop: int) -> None:
    """Insert a mark behind each ``{% set name = ... %}`` of a list of statements."""
    from jinja2 import nodes

    for position in reversed(range(len(body))):
        statement = body[position]
        if isinstance(statement, nodes.Assign) and isinstance(statement.target, nodes.Name):
            body.insert(position + 1, _call("assign_item", loop, statement.target.name))


def _mark_ends(body: list[Any], numbers: Mapping[int, int]) -> None:
    """Insert a mark behind each loop of a list of statements.

    Args:
        numbers: of the loops, by id.
    """
    for position in reversed(range(len(body))):
        number = numbers.get(id(body[position]))
        if number is not None:
            body.insert(position + 1, _call("leave_loop", number))


def _call(function: str, loop: int, *names: str) -> nodes.Output:
    """Return the statement ``{{ function(loop, *names) }}``."""
    from jinja2 import nodes

    arguments: list[nodes.Expr] = [nodes.Const(loop)]
    arguments += [nodes.Name(name, "load") for name in names]
    call = nodes.Call(nodes.Name(function, "load"), arguments, [], None, None)
    return nodes.Output([call])


def _bodies(tree: nodes.Node) -> list[list[Any]]:
    """List every list of statements in a template."""
    from jinja2 import nodes

    bodies = []
    for node in [tree, *tree.find_all(nodes.Node)]:
        for name in ("body", "else_"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                bodies.append(body)
    return bodies


def _remove_marks(marked: str, roles: Sequence[object]) -> tuple[str, list[Part]]:
    """Return a text without its marks, and its parts.

    Args:
        roles: of the messages.
    """
    reader = _MarkReader(roles)
    end = 0
    for mark in MARK.finditer(marked):
        reader.add(marked[end : mark.start()])
        end = mark.end()
        begins, loop, message = mark.groups()
        reader.leave(int(loop))
        if begins == "+":
            reader.enter(int(loop), int(message) if message else None)
    reader.add(marked[end:])
    return "".join(reader.pieces), reader.parts


class _MarkReader:
    """Text that is put together while loops are entered and left, with its parts.

    Args:
        roles: of the messages.
    """

    def __init__(self, roles: Sequence[object]) -> None:
        self.roles = roles
        self.pieces: list[str] = []
        self.parts: list[Part] = []
        self.length = 0
        self.around: list[tuple[int, int]] = []  # the loops that we are in, and whose text it is

    @property
    def writer(self) -> int:
        """Return the message that writes now."""
        if not self.around:
            return NOBODY
        _, message = self.around[-1]
        return message

    def enter(self, loop: int, message: int | None) -> None:
        """Begin an item of a loop; None: it is no message.

        A loop inside of a message (a search for the name of a call) writes for that message. But
        what a tool answers is the tool's, also where it is written with the call.
        """
        writer = self.writer
        if message is None:
            message = writer
        if writer == NOBODY or self._answers_call(writer, message):
            self.around.append((loop, message))
        else:
            self.around.append((loop, writer))

    def _answers_call(self, caller: int, message: int) -> bool:
        return self.roles[caller] == "assistant" and self.roles[message] == "tool"

    def leave(self, loop: int) -> None:
        """End an item of a loop, and of all loops in it."""
        for depth, (number, _) in enumerate(self.around):
            if number == loop:
                del self.around[depth:]
                return

    def add(self, piece: str) -> None:
        """Add text of the message that writes now."""
        if not piece:
            return

        start = self.length
        self.length += len(piece)
        self.pieces.append(piece)
        if self.parts and self.parts[-1].message == self.writer:
            start = self.parts.pop().start
        self.parts.append(Part(self.writer, start, self.length))
