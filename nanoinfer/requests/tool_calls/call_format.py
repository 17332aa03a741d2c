"""CallFormat: how a family of models writes tool calls."""

from collections.abc import Sequence

from nanoinfer.requests.tool_calls.cursor import Cursor, Reads


class CallFormat:
    """A way to write calls; a subclass says which.

    `name`: what `--tool-call-parser` calls it. `begins`: the tags behind which calls come. `ends`: the tags that may follow
    a call, and belong to no text.
    """

    name = ""
    begins: Sequence[str] = ()
    ends: Sequence[str] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags that have a meaning."""
        return (*self.begins, *self.ends)

    def is_in(self, template: str) -> bool:
        """Whether a chat template renders tools, and writes calls in this format."""
        raise NotImplementedError

    def read_calls(self, cursor: Cursor, tag: str) -> Reads[None]:
        """Read the call that follows `tag`, or several. NotACall if there is none."""
        raise NotImplementedError

    def lark_rules(self, names: Sequence[str], parallel: bool) -> list[str]:
        """A Lark grammar for calls of these functions, or for one of them; `@a0`, `@a1` and so on are their arguments."""
        raise NotImplementedError
