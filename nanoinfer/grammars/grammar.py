"""Grammar: what the output of a request must look like, as its SamplingParams say it."""

from dataclasses import dataclass

from nanoinfer.requests.sampling_params import GRAMMAR_FIELDS, SamplingParams

MAX_LENGTH = 200_000  # characters of a grammar of any kind


@dataclass(frozen=True)
class Grammar:
    """`kind`: the field of SamplingParams that it comes from (GRAMMAR_FIELDS). `text`: a regular expression, a JSON schema,
    a Lark grammar, the choices as a JSON list, or [tool_calls, parallel_tool_calls] as JSON. Equal grammars are compiled
    only once.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, params: SamplingParams) -> "Grammar | None":
        """The grammar that `params` ask for; None if they ask for none."""
        given = [(name, text) for name, text in params.grammar_texts if text is not None]
        return cls(*given[0]) if given else None

    def __post_init__(self) -> None:
        assert self.kind in GRAMMAR_FIELDS


class Refusal(ValueError):
    """Why a grammar cannot be served, in words that follow its name. As a result it is the compiler's verdict, which is
    kept. Raised, it says nothing about the grammar itself, and the next request with it is tried again."""
