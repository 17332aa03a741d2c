"""CallFormat: how a family of models writes tool calls."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoinfer.requests.tool_calls.cursor import Cursor, Reads

Schemas = Mapping[str, Any]
Tag = Callable[[str], str]
NAME, ARGUMENTS = "NAME", "ARGUMENTS"  # what stands in `call` for those of a call


class CallFormat:
    """A way to write calls; a subclass says which.

    `name`: what `--tool-call-parser` calls it. `marks`: a chat template that has all of one of these texts writes calls so,
    if it shows tools. `begins`: the tags behind which calls come. `ends`: the tags that may follow a call, and belong to no
    text. `others`: further tags that have a meaning. `bare`: characters with which a reply may begin that is a call without
    a tag. `id_length`: the number of characters that the template demands of a call's id; None: any.

    `call`, `between`, `around`: how calls are written that a grammar demands: one, what is between two, and around all.
    """

    name = ""
    marks: Sequence[Sequence[str]] = ()
    begins: Sequence[str] = ()
    ends: Sequence[str] = ()
    others: Sequence[str] = ()
    bare = ""
    id_length: int | None = None
    call, between, around = "", "\n", ("", "")

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags that have a meaning."""
        return (*self.begins, *self.ends, *self.others)

    def is_in(self, template: str) -> bool:
        """Whether a chat template that renders tools writes calls in this format."""
        return any(all(mark in template for mark in marks) for marks in self.marks)

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read the call that follows `tag`, or several; without a tag, the one that begins a reply. NotACall if there is
        none."""
        raise NotImplementedError

    def grammar(self, functions: Schemas, parallel: bool, tag: Tag) -> tuple[list[str], Schemas]:
        """Rules of a Lark grammar, `calls` the first, for calls of `functions` (name → JSON schema of the arguments), or
        for one if not `parallel`; and the JSON schemas to which they refer as `@name`. `tag` writes a tag, which may be a
        special token. ValueError for a schema that cannot be demanded exactly in this format."""
        before, behind = (self._in_lark(text, tag) for text in self.around)
        more = f" ({quoted(self.between)} call)*" if parallel else ""
        rules = [
            f"calls: {before} call{more} {behind}",
            f"call: {' | '.join(f'call{i}' for i in range(len(functions)))}",
        ]
        schemas: dict[str, Any] = {}
        for i, (name, schema) in enumerate(functions.items()):
            arguments, others, parts = self.arguments(i, name, schema, tag)
            rules += [f"call{i}: {self._in_lark(self.call, tag, name, arguments)}", *others]
            schemas |= parts
        return rules, schemas

    def arguments(self, i: int, name: str, schema: Any, tag: Tag) -> tuple[str, list[str], Schemas]:
        """What stands in the rule of function `i` for its arguments, further rules, and the JSON schemas of them: here,
        the arguments are JSON."""
        return f"@a{i}", [], {f"a{i}": schema}

    def _in_lark(self, text: str, tag: Tag, name: str = "", arguments: str = "") -> str:
        """Text as a Lark grammar has it. In pieces as JSON's, so that another object may come in its place: the compiler
        does not go back within a piece."""
        tags = "|".join(map(re.escape, self.tags))
        known = {NAME: quoted(name), f'"{NAME}"': quoted(quoted(name)), ARGUMENTS: arguments}
        pieces = re.split(rf'({tags}|"?{NAME}"?|{ARGUMENTS}|"\w+"|[{{}}])', text)
        return " ".join(
            known[each] if each in known else tag(each) if each in self.tags else quoted(each)
            for each in pieces
            if each
        )


def quoted(text: str) -> str:
    """Text as a Lark grammar has it."""
    return json.dumps(text, ensure_ascii=False)
