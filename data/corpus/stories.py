"""Stories: a plot, a hero and a helper make one text and the questions that it answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import plots_adventure, plots_help, plots_home, words
from .plot import Plot

PLOTS: tuple[Plot, ...] = (
    plots_help.LOST,
    plots_help.LEARN,
    plots_help.SHARE,
    plots_adventure.BRAVE,
    plots_home.GIFT,
    plots_home.HONEST,
    plots_home.QUARREL,
    plots_home.SEED,
    plots_home.SICK,
    plots_adventure.TREASURE,
)
OPENINGS = (
    "Once upon a time, there was a {t} {k} named {n}. {He} lived in {home}.",
    "Once upon a time, a {t} {k} named {n} lived in {home}.",
    "There was once a {t} {k} called {n}. {He} lived in {home}.",
    "There was a {t} {k} named {n}, and {his} home was {home}.",
    "{n} was a {t} {k} who lived in {home}.",
    "In {home}, there lived a {t} {k} named {n}.",
    "Long ago, a {t} {k} named {n} lived in {home}.",
    "A {t} {k} named {n} lived in {home}.",
    "Once there was a {t} {k}. {His} name was {n}, and {he} lived in {home}.",
    "There was a {t} {k} named {n}.",
)
DAY_OPENINGS = (
    "One {weather} {part}, a {t} {k} named {n} woke up early in {home}.",
    "One day, a {t} {k} named {n} woke up in {home}. It was {a_weather} {part}.",
    "It was {a_weather} {part} when a {t} {k} named {n} woke up in {home}.",
)
ENDINGS = ("And so {n} learned that {moral}.", "{n} learned that {moral}.", "That is how {n} learned that {moral}.")
END = ("", "", "", " The end.")


@dataclass(frozen=True)
class Story:
    """A finished story: its text and the (question, answer) pairs it supports, the hero's name first."""

    text: str
    questions: list[tuple[str, str]]


def draw_kind(rng: random.Random) -> str:
    """A kind of animal, creature or person."""
    kinds = rng.choices((words.ANIMALS, words.CREATURES, words.PEOPLE, ("girl", "boy")), (0.6, 0.15, 0.12, 0.13))[0]
    return rng.choice(list(kinds))


def draw_hero(rng: random.Random, kind: str | None) -> tuple[str, str, bool]:
    """Kind (drawn where `kind` is None), name and whether the pronouns are female."""
    if kind is None:
        kind = draw_kind(rng)
    female = words.PEOPLE.get(kind)
    if female is None:
        female = rng.random() < 0.5
    return kind, words.draw_name(rng, words.GIRLS if female else words.BOYS), female


def draw_fields(rng: random.Random, plot: Plot, kind: str | None, name: str | None) -> dict[str, str]:
    """The words of one story: everything a template of `plot` may name."""
    k, n, female = draw_hero(rng, kind)
    if name is not None:
        n, female = name, name in words.GIRLS or (name not in words.BOYS and female)
    mk, m = k, n
    while mk == k or m == n:
        mk, m, _ = draw_hero(rng, None)
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    food, (s1, s2, s3) = rng.sample(words.FOODS, 2), rng.sample(words.SPOTS, 3)
    trait, helper_trait = rng.sample(words.TRAITS, 2)
    home = words.ANIMALS[k].home if k in words.ANIMALS else words.CREATURES.get(k) or rng.choice(words.PEOPLE_HOMES)
    fields = {"n": n, "k": k, "t": trait, "home": home, "m": m, "mk": mk, "a_m": words.a(f"{helper_trait} {mk}")}
    fields |= {"he": he, "him": him, "his": his, "He": he.title(), "His": his.title()}
    fields |= {"food": food[0], "food2": food[1], "s1": s1, "s2": s2, "s3": s3, "s1_up": s1.capitalize()}
    fields |= {"place": rng.choice(words.PLACES), "weather": rng.choice(words.WEATHER)}
    fields |= {"part": rng.choice(words.DAY_PARTS), "thing": rng.choice(words.THINGS), "moral": rng.choice(plot.morals)}
    for options in plot.choices.values():
        fields |= {key: text.format_map(fields) for key, text in rng.choice(options).items()}
    fields["obj"] = f"{rng.choice(words.COLORS)} {fields['thing']}"
    fields |= {f"a_{key}": words.a(fields[key]) for key in ("obj", "food", "food2", "weather", "mk")}
    return fields


def open_story(rng: random.Random, fields: dict[str, str]) -> str:
    """The first sentences; sets `fields["when"]` so that the day is named only once."""
    part = fields["part"]
    if rng.random() < 0.25:
        opening = rng.choice(DAY_OPENINGS)
        fields["when"] = rng.choice((f"That {part}", "A little later"))
    else:
        opening = rng.choice(OPENINGS)
        fields["when"] = rng.choice((f"One {fields['weather']} {part}", "One day", f"One {part}"))
        if rng.random() < 0.4:
            opening += rng.choice((" {He} loved ", " {n} loved ")) + rng.choice(words.LIKES) + "."
    return opening.format_map(fields)


def tell(rng: random.Random, kind: str | None = None, name: str | None = None) -> Story:
    """One story.

    Args:
        rng: source of all choices.
        kind: the hero, e.g. "fox" or "girl"; drawn when None.
        name: the hero's name; drawn when None.
    """
    plot = rng.choice(PLOTS)
    fields = draw_fields(rng, plot, kind, name)
    opening = open_story(rng, fields)
    paragraphs = [[rng.choice(slot).format_map(fields) for slot in paragraph] for paragraph in plot.paragraphs]
    paragraphs[0].insert(0, opening)
    has_moral = rng.random() < 0.7
    if has_moral:
        paragraphs[-1].append(rng.choice(ENDINGS).format_map(fields) + rng.choice(END))
    text = "\n\n".join(" ".join(filter(None, sentences)) for sentences in paragraphs)

    n, k, home = fields["n"], fields["k"], fields["home"]
    pairs = [(rng.choice(questions), rng.choice(answers)) for questions, answers in plot.facts]
    name_question = rng.choice(("What was its name?", "What was the {k}'s name?", "What was the {k} called?"))
    name_answer = rng.choice(("Its name was {n}.", "The {k}'s name was {n}.", "The {k} was called {n}."))
    if k in words.PEOPLE:
        name_question, name_answer = "What was {his} name?", "{His} name was {n}."
    pairs.insert(0, (name_question, name_answer))
    questions = [(question.format_map(fields), answer.format_map(fields)) for question, answer in pairs]
    if home in text:
        questions.append((f"Where did {rng.choice((n, 'the ' + k))} live?", f"{n} lived in {home}."))
    if has_moral:
        lesson = rng.choice(("What did {n} learn?", "What is the lesson?", "What is the moral of the story?"))
        questions.append((lesson.format_map(fields), f"{n} learned that {fields['moral']}."))
    return Story(text, questions)
