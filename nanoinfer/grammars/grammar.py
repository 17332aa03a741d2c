"""Grammar: what the output of a request must look like, as its SamplingParams say it."""

from dataclasses import dataclass

from nanoinfer.requests.sampling_params import GRAMMAR_FIELDS, SamplingParams


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
