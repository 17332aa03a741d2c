"""typed_pattern: a regular expression and a text are typed, and the page says the state and what may come next.

Elsewhere a page shows what was recorded. What will be typed cannot be recorded, so this page has the small machine of
notebooks/course/regular_expression.py once more, in regular_expression.js; a test compares the two.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.token_text import token_text
from nanoinfer.viz.page import filled, safe_json
from nanoinfer.viz.picture import Picture
from notebooks.course.explore.explorable import Page, part
from notebooks.course.regular_expression import Machine
from notebooks.course.states_picture import states_picture

TITLE = "Which characters and tokens may come next?"
NUMBER = r"-?\d+(\.\d+)?"


class Example(NamedTuple):
    name: str
    pattern: str
    text: str


EXAMPLES = (
    Example("a number", NUMBER, "-12."),
    Example("numbers with commas", f"{NUMBER}(,{NUMBER})*", "-12.5,7"),
    Example("an age", r" (two|ten|\d+) years old\.", " two"),
    Example("a key and a value", r'\{"name":"[A-Z][a-z]+"\}', '{"name":"Li'),
    Example("two choices that begin alike", "(yes|yesterday)", "yes"),
)


def token_texts(llm: LLM) -> list[str]:
    """The text of each token; empty for special tokens, and for those that are a part of a character."""
    if llm.tokenizer is None:
        raise ValueError("llm: must have a tokenizer, because its tokens are shown as text")
    special = llm.tokenizer.special_ids
    texts = ["" if i in special else token_text(llm.tokenizer, [i]) for i in range(llm.model.config.vocab_size)]
    return ["" if "\ufffd" in text else text for text in texts]


class TypedPattern(Page):
    """`tokens`: the vocabulary. `examples`: what can be chosen instead of typed; the first is there at the beginning."""

    described = "a page to type in"

    def __init__(self, tokens: Sequence[str], examples: Sequence[Example] = EXAMPLES, height: int = 760):
        self.title, self.height = TITLE, height
        self.tokens, self.examples = list(tokens), list(examples)

    def html(self) -> str:
        """The page."""
        parts = {
            "title": html.escape(self.title),
            "intro": "Type a regular expression and a text. After each character, the page says which state it leads to, "
            "what may still come, and which tokens of the bundled model may come next.",
            "source": "Computed in this page, by the machine of notebook 15.",
            "css": part("page.css"),
            "data": safe_json(
                {"tokens": self.tokens, "examples": [each._asdict() for each in self.examples], "controls": []}
            ),
            "script": f"{part('regular_expression.js')}\n{part('typed_pattern.js')}",
        }
        return filled(part("typed_pattern.html"), parts)

    def still(self) -> Picture:
        """The states of the first example, the way of its text, and the tokens that may come next."""
        first = self.examples[0]
        machine = Machine(first.pattern)
        may = [self.tokens[i] for i in np.flatnonzero(machine.mask(machine.step(0, first.text), self.tokens))]
        shown = f"{', '.join(may[:10])}{', …' * (len(may) > 10)}"
        said = f"Of {len(self.tokens):,} tokens, {len(may)} may come next: {shown}. In the page, type your own."
        return states_picture(machine, first.text, title=self.title, caption=said)


def typed_pattern(llm: LLM) -> TypedPattern:
    """The page for the vocabulary of `llm`."""
    return TypedPattern(token_texts(llm))
