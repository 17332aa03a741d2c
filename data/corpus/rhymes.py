"""Stories in rhymes: seven couplets in four stanzas. The plots are in `verses`, the words that rhyme are here."""

from __future__ import annotations

import random
import re

from . import stories, verses, words

FAMILIES = tuple(
    frozenset(family.split())
    for family in (
        "day play way away bay hay say stay gray clay today",
        "tree he she see me be bee free tea three key knee sea",
        "mill hill still until will",
        "town brown down frown crown",
        "stream dream cream gleam",
        "wall small tall fall all call ball",
        "wood good stood could should",
        "lane rain train grain pain",
        "lake awake cake bake make take shake",
        "friend end mend bend send",
        "high sky cry try sigh dry why by my fly eye",
        "moon tune soon noon spoon",
        "bright night light right sight",
        "kind find mind behind",
        "long strong song along wrong",
        "new blue true you too two few grew knew do through",
        "red bed head said bread ahead instead",
        "found ground round around sound",
        "stone alone own grown",
        "spring thing sing ring king bring",
        "more floor door before shore",
        "clear cheer near here dear fear hear year",
        "fair share there where care air bear everywhere",
        "while smile mile",
        "sun fun done one run begun",
        "star far are jar",
        "snow slow grow go know low",
    )
)
"""Words that rhyme with each other; every line of a story in rhymes ends with one of them."""


def last_word(line: str) -> str:
    """The last word of a line, in small letters: "tree" for '"Come with me to the tree!"'."""
    found = re.findall(r"[A-Za-z]+", line)
    return found[-1].lower() if found else ""


def rhyme(first: str, second: str) -> bool:
    """Whether two lines end with different words of one family."""
    one, other = last_word(first), last_word(second)
    return one != other and any({one, other} <= family for family in FAMILIES)


def couplets(text: str) -> list[tuple[str, str]]:
    """The lines of `text` two by two; an unfinished pair at the end is left out."""
    lines = [line for line in text.split("\n") if line]
    return list(zip(lines[::2], lines[1::2], strict=False))


def tell(rng: random.Random, kind: str | None = None, name: str | None = None) -> str:
    """One story in rhymes.

    Args:
        rng: source of all choices.
        kind: the hero, e.g. "fox" or "girl"; drawn when None.
        name: the hero's name; drawn when None.
    """
    plot = rng.choice(verses.PLOTS)
    fields = stories.draw_fields(rng, plot, kind, name)
    fields["a_thing"] = words.a(fields["thing"])
    fields["A_m"] = f"A{fields['a_m'][1:]}"
    stanzas = [[rng.choice(slot) for slot in stanza] for stanza in plot.paragraphs]
    stanzas[0].insert(0, f"{rng.choice(verses.LIVED)} {rng.choice(verses.WHERE)}")
    stanzas.append([rng.choice(verses.ENDINGS)])
    return "\n\n".join("\n".join(stanza) for stanza in stanzas).format_map(fields)
