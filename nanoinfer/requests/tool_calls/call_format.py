"""CallFormat: how a family of models writes tool calls."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoinfer.requests.tool_calls.cursor import Cursor, Reads

Schemas = Mapping[str, Any]
Tag = Callable[[str], str]


class CallFormat:
    """A way to write calls; a subclass says which.

    `name`: what `--tool-call-parser` calls it. `begins`: the tags behind which calls come. `ends`: the tags that may follow
    a call, and belong to no text. `bare`: characters with which a reply may begin that is a call without a tag.
    `id_length`: the number of characters that the template demands of a call's id; None: any.
    """

    name = ""
    begins: Sequence[str] = ()
    ends: Sequence[str] = ()
    bare = ""
    id_length: int | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags that have a meaning."""
        return (*self.begins, *self.ends)

    def is_in(self, template: str) -> bool:
        """Whether a chat template that renders tools writes calls in this format."""
        raise NotImplementedError

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read the call that follows `tag`, or several; without a tag, the one that begins a reply. NotACall if there is
        none."""
        raise NotImplementedError

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        """Rules of a Lark grammar, `calls` the first, for calls of `functions` (name → JSON schema of the arguments), or
        for one if not `parallel`; and the JSON schemas to which they refer as `@name`. `tag` writes a tag, which may be a
        special token. ValueError for a schema that cannot be demanded exactly in this format."""
        raise NotImplementedError


class JsonCalls(CallFormat):
    """Calls in which the arguments stand as JSON. A subclass says what comes around them."""

    between = "\n"  # two calls
    around = ("", "")  # all of them

    def one(self, name: str, tag: Tag) -> tuple[str, str]:
        """What stands before and behind the arguments of a call, in Lark's notation."""
        raise NotImplementedError

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        alternatives = " | ".join(f"call{i}" for i in range(len(functions)))
        more = f" ({quoted(self.between)} call)*" if parallel else ""
        rules = [f"calls: {self._all(tag)[0]} call{more} {self._all(tag)[1]}", f"call: {alternatives}"]
        for i, name in enumerate(functions):
            before, behind = self.one(name, tag)
            rules.append(f"call{i}: {before} @a{i} {behind}")
        return rules, {f"a{i}": schema for i, schema in enumerate(functions.values())}

    def _all(self, tag: Tag) -> list[str]:
        return [tag(each) if each in self.tags else quoted(each) if each else "" for each in self.around]


def quoted(text: str) -> str:
    """Text as a Lark grammar has it."""
    return json.dumps(text, ensure_ascii=False)


def named(name: str, key: str) -> str:
    """What stands in an object before the arguments of a call. In pieces as JSON's, so that another object may come
    in its place: the compiler does not go back within a piece."""
    return " ".join(map(quoted, ("{", '"name"', ": ", quoted(name), ", ", f'"{key}"', ": ")))
