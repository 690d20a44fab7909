"""Parser for device selectors: the part of CEL that such expressions use.

An expression becomes a tree of tuples, whose first item is the kind of the node. Syntax outside
this part is refused by name, never guessed at.
"""

from __future__ import annotations

import ast
import re
from typing import Final, TypeAlias

LONGEST: Final = 10 * 1024
"""Characters; Kubernetes' own bound."""
DEEPEST: Final = 50
LONGEST_NUMBER: Final = 19
"""Digits of the largest 64-bit number; a double distinguishes fewer."""
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>\|\||&&|==|!=|<=|>=|\.\?|\[\?|[-+!<>?:.,()\[\]]))""",
    re.ASCII | re.VERBOSE,
)
_COMPARED: Final = ("==", "!=", "<=", ">=", "<", ">")

Node: TypeAlias = tuple[object, ...]


class CelError(Exception):
    """Raised for a malformed expression or for a value that it cannot evaluate."""


def parse(text: str) -> Node:
    """Parse an expression into its tree. Raises CelError."""
    if len(text) > LONGEST:
        raise CelError(f"{len(text)} characters, more than {LONGEST}")
    parser = _Parser(_tokens(text))
    found = parser.expression(0)
    if parser.kind:
        raise CelError(f"unexpected {parser.text!r}")
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise CelError(f"{text[at : at + 20].strip()!r} is not supported")
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = [*tokens, ("", "the end")]
        self._at = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self, *signs: str) -> str:
        """Consume the next token if it is one of these signs and return it; empty if it is not."""
        kind, text = self._tokens[self._at]
        if kind != "sign" or text not in signs:
            return ""
        self._at += 1
        return text

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"{sign!r} is expected before {self.text!r}")

    def _name(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "name":
            raise CelError(f"a name is expected before {text!r}")
        self._at += 1
        return text

    def expression(self, deep: int) -> Node:
        if deep > DEEPEST:
            raise CelError(f"deeper than {DEEPEST}")
        found = self._or(deep + 1)
        if self._take("?"):
            yes = self.expression(deep + 1)
            self._need(":")
            found = ("if", found, yes, self.expression(deep + 1))
        return found

    def _or(self, deep: int) -> Node:
        found = self._and(deep)
        while self._take("||"):
            found = ("or", found, self._and(deep))
        return found

    def _and(self, deep: int) -> Node:
        found = self._relation(deep)
        while self._take("&&"):
            found = ("and", found, self._relation(deep))
        return found

    def _relation(self, deep: int) -> Node:
        found = self._sum(deep)
        while True:
            if sign := self._take(*_COMPARED):
                found = ("compare", sign, found, self._sum(deep))
            elif self.kind == "name" and self.text == "in":
                self._at += 1
                found = ("in", found, self._sum(deep))
            else:
                return found

    def _sum(self, deep: int) -> Node:
        found = self._unary(deep)
        while sign := self._take("+", "-"):
            found = ("sum", sign, found, self._unary(deep))
        return found

    def _unary(self, deep: int) -> Node:
        if deep > DEEPEST:
            raise CelError(f"deeper than {DEEPEST}")
        if self._take("!"):
            return ("not", self._unary(deep + 1))
        if self._take("-"):
            return ("minus", self._unary(deep + 1))
        return self._member(deep)

    def _member(self, deep: int) -> Node:
        found = self._primary(deep)
        while True:
            if self._take("."):
                name = self._name()
                if self._take("("):
                    found = ("method", found, name, self._items(")", deep))
                else:
                    found = ("field", found, name, False)
            elif self._take(".?"):
                found = ("field", found, self._name(), True)
            elif sign := self._take("[", "[?"):
                key = self.expression(deep + 1)
                self._need("]")
                found = ("index", found, key, sign == "[?")
            else:
                return found

    def _primary(self, deep: int) -> Node:
        kind, text = self._tokens[self._at]
        if self._take("("):
            found = self.expression(deep + 1)
            self._need(")")
            return found
        if self._take("["):
            return ("list", self._items("]", deep))
        if not kind or kind == "sign":
            raise CelError(f"a value is expected before {text!r}")
        self._at += 1
        if kind == "number":
            if len(text) > LONGEST_NUMBER:
                raise CelError(f"{text[:40]} has more than {LONGEST_NUMBER} digits")
            return ("value", float(text) if "." in text else int(text))
        if kind == "text":
            try:
                return ("value", str(ast.literal_eval(text)))
            except (ValueError, SyntaxError):
                raise CelError(f"{text[:40]} is not supported") from None
        if text in ("true", "false"):
            return ("value", text == "true")
        if self._take("("):
            return ("call", text, self._items(")", deep))
        return ("name", text)

    def _items(self, end: str, deep: int) -> tuple[Node, ...]:
        found: list[Node] = []
        if self._take(end):
            return ()
        while True:
            found.append(self.expression(deep + 1))
            if self._take(end):
                return tuple(found)
            self._need(",")
