"""Plot skeletons: pure data that `stories.tell` fills in.

A plot is a list of paragraphs, a paragraph a list of slots, a slot a tuple of sentences of which one is drawn (""
leaves the slot out). The fields: `{n}` hero, `{k}` its kind, `{he}` `{him}` `{his}` (capitalised: `{He}` `{His}`) its
pronouns; `{m}` `{mk}` name and kind of the helper, `{a_m}` the helper at first sight ("a shy owl"); `{obj}` a thing;
`{place}`; `{s1}` `{s2}` `{s3}` spots; `{food}` `{food2}`; `{when}`; and the fields that the plot's `choices` define.
`{a_x}` is `{x}` with its article. The helper gets no pronouns, so that `{he}` never has two readings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Slot = tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """A skeleton: its paragraphs, its morals, its additional word choices, and question/answer pairs its text supports."""

    paragraphs: list[list[Slot]]
    morals: Slot
    choices: dict[str, tuple[dict[str, str], ...]] = field(default_factory=dict)
    facts: tuple[tuple[Slot, Slot], ...] = ()


THANKS = (
    '"Thank you, {m}!" said {n}. "You are a true friend."',
    '"Thank you so much!" said {n} with a big smile.',
    '{n} gave {m} a big hug. "Thank you!"',
    '"I will never forget this," said {n}. "Thank you, {m}."',
)
FRIENDS = (
    "From that day on, {n} and {m} were best friends.",
    "After that, {n} and {m} played together every day.",
    "{n} and {m} walked home together, singing all the way.",
    "",
)
MEET = (
    "Just then, {a_m} named {m} came by.",
    "Soon {a_m} named {m} came along the path.",
    "After a while, {a_m} named {m} walked past.",
    "Then {n} met {a_m} named {m}.",
)
WHO_HELPED = (
    ("Who helped {n}?", "Who helped the {k}?", "And who helped {him}?", "Who was the helper?"),
    ("{m} the {mk} helped {n}.", "{n} was helped by {a_mk} named {m}."),
)
WHERE = (("Where did {n} go?", "Where did the {k} go?"), ("{n} went to the {place}.",))
