"""Exchanges that test memory and order: what the user said, what comes next, and what a tiny model cannot know."""

from __future__ import annotations

import random

from . import words
from .dialogues import Turns
from .words import ANIMALS


def user_fact(rng: random.Random) -> tuple[Turns, Turns]:
    """The turns in which the user states a fact, and the turns of the later question about it."""
    topic = rng.choice(("name", "name", "name", "color", "pet", "animal", "food", "age", "place"))
    name = words.draw_name(rng, words.GIRLS + words.BOYS)
    if topic == "name":
        said = rng.choice(
            ("My name is {}.", "I am {}.", "I'm {}.", "Hi, I am {}.", "Hello, my name is {}.", "Hello! I'm {}.")
        )
        reply = rng.choice(
            ("Nice to meet you, {}!", "Hello, {}! How can I help you?", "Hi, {}! It is nice to meet you.")
        )
        ask = rng.choice(
            ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?")
        )
        return [(said.format(name), reply.format(name))], [(ask, f"Your name is {name}.")]
    if topic == "pet":
        kind = rng.choice(("dog", "cat", "rabbit", "mouse", "horse", "hen", "turtle", "goat"))
        said = rng.choice((f"I have a {kind} named {name}.", f"My {kind} is called {name}."))
        ask = rng.choice(
            (f"What is my {kind}'s name?", f"What is the name of my {kind}?", f"What is my {kind} called?")
        )
        return [(said, f"{name} is a nice name for a {kind}!")], [(ask, f"Your {kind}'s name is {name}.")]
    if topic == "age":
        age = rng.randint(4, 60)
        return [(f"I am {age} years old.", f"{age} is a good age!")], [("How old am I?", f"You are {age} years old.")]
    if topic == "place":
        home = rng.choice(words.PEOPLE_HOMES)
        return [(f"I live in {home}.", "That sounds like a nice place!")], [
            ("Where do I live?", f"You live in {home}.")
        ]
    word = rng.choice(
        {"color": words.COLORS, "animal": tuple(ANIMALS), "food": ("soup", "bread", "cake", "honey")}[topic]
    )
    shown = word if topic != "animal" else f"the {word}"
    said = f"My favorite {topic} is {shown}."
    reply = rng.choice((f"I like {shown} too!", "That is a good choice!"))
    return [(said, reply)], [(f"What is my favorite {topic}?", f"Your favorite {topic} is {shown}.")]


def unknown_name(rng: random.Random) -> Turns:
    """The user asks for a name that was never given, then gives it."""
    name = words.draw_name(rng, words.GIRLS + words.BOYS)
    ask = rng.choice(("What is my name?", "What's my name?", "Do you know my name?", "Who am I?"))
    tell = rng.choice(("My name is {}.", "I am {}.", "I'm {}.", "It is {}.", "{}.")).format(name)
    turns = [(ask, "I do not know your name yet. What is your name?"), (tell, f"Nice to meet you, {name}!")]
    if rng.random() < 0.5:
        turns.append((rng.choice(("So what is my name?", "And what is my name now?")), f"Your name is {name}."))
    return turns


def calendar(rng: random.Random) -> Turns:
    """Days, months and seasons in their order."""
    unit, names = rng.choice((("day", words.DAYS), ("month", words.MONTHS), ("season", words.SEASONS)))
    here = rng.randrange(len(names))
    one, two, three = (names[(here + i) % len(names)] for i in range(3))
    if rng.random() < 0.5:
        turns = [(f"What {unit} comes after {one}?", f"{two.capitalize()} comes after {one}.")]
        if rng.random() < 0.6:
            turns.append(
                (
                    rng.choice(("And after that?", "And then?", "What comes next?")),
                    f"{three.capitalize()} comes after {two}.",
                )
            )
        return turns
    return [(f"What {unit} comes before {two}?", f"{one.capitalize()} comes before {two}.")]


def listing(rng: random.Random) -> Turns:
    """Name some things of a class, then one more that was not named yet."""
    classes = {
        "animals": tuple(ANIMALS),
        "colors": words.COLORS,
        "days of the week": words.DAYS,
        "months": words.MONTHS,
    }
    classes |= {
        "girl names": words.GIRLS,
        "boy names": words.BOYS,
        "farm animals": ("cow", "pig", "hen", "horse", "sheep", "goat"),
    }
    what = rng.choice(list(classes))
    count, how_many = rng.choice(((2, "two"), (3, "three"), (3, "three"), (4, "four")))
    *named, extra = rng.sample(classes[what], count + 1)
    ask = rng.choice(("Name {} {}.", "Can you name {} {}?", "Tell me {} {}.", "List {} {}.")).format(how_many, what)
    answer = ", ".join(named[:-1]) + f" and {named[-1]}."
    turns = [(ask, answer[0].upper() + answer[1:])]
    if rng.random() < 0.5:
        turns.append((rng.choice(("One more, please.", "Name one more.", "And one more?")), f"{extra.capitalize()}."))
    return turns


def repeat(rng: random.Random) -> Turns:
    """Say exactly what the user says."""
    phrase = rng.choice(
        (
            f"the {rng.choice(words.COLORS)} {rng.choice(words.THINGS + words.SOFT_THINGS)}",
            f"the {rng.choice(words.TRAITS)} {rng.choice(list(ANIMALS))} lives in the {rng.choice(words.PLACES)}",
            " ".join(rng.sample((*words.COLORS, *ANIMALS, *words.THINGS), rng.randint(1, 4))),
            " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(2, 5))),
        )
    )
    return [
        (rng.choice(("Repeat: {}", "Say this: {}", "Repeat after me: {}", "Please repeat: {}")).format(phrase), phrase)
    ]


def unknown(rng: random.Random) -> Turns:
    """Questions beyond a tiny model, which it should decline instead of inventing an answer."""
    country = rng.choice(
        ("France", "Spain", "Japan", "Brazil", "Egypt", "India", "Canada", "Germany", "Italy", "Kenya")
    )
    thing = rng.choice(("the telephone", "the car", "paper", "the computer", "the radio", "the airplane"))
    field = rng.choice(("physics", "chemistry", "history", "computer science", "music", "machine learning"))
    question = rng.choice(
        (
            f"What is the capital of {country}?",
            f"Who is the president of {country}?",
            f"How many people live in {country}?",
            f"Who invented {thing}?",
            f"When was {thing} invented?",
            f"Explain {field} to me.",
            f"What is {field}?",
            f"Write a {rng.choice(('Python', 'Java', 'computer'))} program.",
            "What is the weather today?",
            "What time is it?",
            f"Why is {rng.choice(list(words.THING_COLORS))} so {rng.choice(('big', 'old', 'cold', 'nice', 'bright'))}?",
            "Tell me a joke.",
            "Sing a song for me.",
            "How far away is the moon?",
            "What is the meaning of life?",
            f"Translate this into {rng.choice(('French', 'German', 'Spanish'))}.",
            "Who won the game yesterday?",
        )
    )
    sorry = (
        "I am sorry, I do not know that. I am only a tiny model.",
        "I do not know. That is too hard for me, sorry!",
    )
    turns = [(question, rng.choice(sorry))]
    if rng.random() < 0.3:
        turns.append(
            ("What can you do then?", "I can tell short stories, talk about animals, count, and add small numbers.")
        )
    return turns
