"""Chat templates that tell which message they write.

A chat template goes through the messages in a loop. The parser below adds calls of ``watch_`` to
the template: around each loop, and at each item. So a conversation is rendered as a whole, also by
templates that drop earlier thoughts or merge messages. Transformers itself only finds the text
between {% generation %} marks, which most templates lack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.parser import Parser

from ..private.transformers import compile_template

NOBODY = -1  # instead of the number of a message


def compile_watched(text: str) -> Any:
    """Compile a chat template that calls the ``Watch`` in the variable ``watch_``."""
    template = compile_template(text)
    environment = template.environment
    code = environment.compile(_WatchedParser(environment, text).parse())
    return template.from_code(environment, code, environment.globals)


class Watch:
    """The message that writes now, in each of the nested loops of a template."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self.roles = [message["role"] for message in messages]
        self.numbers = {id(message): number for number, message in enumerate(messages)}
        self.writers = [NOBODY]  # of each loop, the innermost last

    def enter(self) -> None:
        """Begin a loop."""
        self.writers.append(self.writers[-1])

    def leave(self) -> None:
        """End a loop."""
        self.writers.pop()

    def next(self, item: object) -> None:
        """Begin an item of a loop."""
        self.writers[-1] = self.writers[-2]
        self.set(item)

    def set(self, item: object) -> None:
        """Let the message ``item`` write, unless the item of the loop belongs to another message.

        A loop inside of a message (a search for the name of a call) writes for that message. But
        the answer of a tool is the tool's, also inside of the message with the call.
        """
        number = self.numbers.get(id(item))
        if number is None or len(self.writers) == 1:
            return
        outer, now = self.writers[-2:]
        is_answer = (self.roles[outer], self.roles[number]) == ("assistant", "tool")
        if now == outer and (outer == NOBODY or is_answer):
            self.writers[-1] = number


class _WatchedParser(Parser):
    """A parser that adds calls around loops, at their items, and behind assignments."""

    def parse_for(self) -> Any:
        loop = super().parse_for()
        if isinstance(loop.target, nodes.Name):
            loop.body.insert(0, _call("next", loop.target.name))
        return [_call("enter"), loop, _call("leave")]

    def parse_set(self) -> Any:
        # A loop over numbers writes for the first message that the loop assigns.
        assignment = super().parse_set()
        if not isinstance(assignment.target, nodes.Name):
            return assignment
        return [assignment, _call("set", assignment.target.name)]


def _call(method: str, *names: str) -> nodes.ExprStmt:
    """Return the statement ``watch_.method(names)``."""
    called = nodes.Getattr(nodes.Name("watch_", "load"), method, "load")
    arguments: list[nodes.Expr] = [nodes.Name(name, "load") for name in names]
    return nodes.ExprStmt(nodes.Call(called, arguments, [], None, None))
