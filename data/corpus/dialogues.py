"""Dialogues in the chat format: short exchanges, many of whose later turns need the earlier ones."""

from __future__ import annotations

import random
from dataclasses import asdict

from . import numbers, stories, words
from .words import ANIMALS, a

Turns = list[tuple[str, str]]


def greeting(rng: random.Random) -> Turns:
    """Hello and a reply; if the reply asks for the user's mood, also the turns that follow from it."""
    hello = rng.choice(("Hello", "Hello", "Hi", "Hey", "Hi there", "Hello there", "Good morning", "Good evening"))
    start = f"{hello}{rng.choice(('', '', '!', '.', ', Nano!'))}"
    reply = rng.choice(("Hello!", "Hi!", "Hello there!", hello.removesuffix(" there") + "!"))
    offer = (" How can I help you today?", " What can I do for you?", " It is nice to meet you.", " How are you?")
    turns = [(start, reply + (last := rng.choice(offer)))]
    if last == offer[3] and rng.random() < 0.6:
        turns.append((rng.choice(("I am fine.", "I'm fine, thanks.", "I am happy today.")), "I am glad to hear that!"))
    elif last == offer[3]:
        turns.append(
            (rng.choice(("I am sad.", "I'm a little sad.", "Not so good.")), "I am sorry. Shall I tell you a story?")
        )
        turns.append((rng.choice(("Yes, please.", "Yes!", "That would be nice.")), stories.tell(rng).text))
    return turns


def about_me(rng: random.Random) -> Turns:
    """Who the model is and what it can do."""
    who = (
        "Who are you?",
        "What are you?",
        "What is your name?",
        "Can you tell me who you are?",
        "Tell me about yourself.",
    )
    names = (
        "I am Nano, a tiny language model. I can tell stories and answer simple questions.",
        "My name is Nano. I am a very small language model.",
    )
    can = ("What can you do?", "How can you help me?", "What do you know?", "And what can you do?")
    abilities = (
        "I can tell short stories, talk about animals, count, and add small numbers.",
        "I can tell a story, count, and answer easy questions about animals and colors.",
    )
    feel = (("How are you?", "How are you today?", "How do you do?"), ("I am fine, thank you! How can I help you?",))
    human = (
        ("Are you a human?", "Are you real?", "Are you a robot?"),
        ("I am a small computer program, not a person.",),
    )
    old = (("How old are you?", "When were you born?"), ("I do not have an age. I am a computer program.",))
    helping = (("Can you help me?", "I need help.", "I have a question."), ("Of course! What do you want to know?",))
    options = [(who, names), (can, abilities), feel, human, old, helping]
    picked = rng.sample(options, rng.choice((1, 1, 2)))
    return [(rng.choice(questions), rng.choice(answers)) for questions, answers in picked]


def colors(rng: random.Random) -> Turns:
    """The color of one thing, then a short question about another."""
    first, second = rng.sample(sorted(words.THING_COLORS), 2)
    ask = rng.choice(
        ("What color is {}?", "What colour is {}?", "Which color does {} have?", "Tell me the color of {}.")
    )
    turns = [(ask.format(first), f"{first.capitalize()} is {words.THING_COLORS[first]}.")]
    if rng.random() < 0.2:
        guess = rng.choice((words.THING_COLORS[first], rng.choice(words.COLORS)))
        yes = "Yes" if guess == words.THING_COLORS[first] else "No"
        turns = [(f"Is {first} {guess}?", f"{yes}, {first} is {words.THING_COLORS[first]}.")]
    if rng.random() < 0.6:
        follow = rng.choice(("And {}?", "What about {}?", "And what color is {}?", "How about {}?"))
        turns.append((follow.format(second), f"{second.capitalize()} is {words.THING_COLORS[second]}."))
    return turns


PLURALS = {"mouse": "mice", "wolf": "wolves", "deer": "deer", "sheep": "sheep", "fox": "foxes"}
FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "eats": (
        ("What does {a} eat?", "What do {ks} eat?", "What do {ks} like to eat?", "What is the food of {a}?"),
        ("And what does it eat?", "What does it eat?", "And what does it like to eat?"),
        "{A} eats {eats}.",
    ),
    "home": (
        ("Where does {a} live?", "Where do {ks} live?", "What is the home of {a}?", "Where can I find {a}?"),
        ("And where does it live?", "Where does it live?", "And where is its home?"),
        "{A} lives in {home}.",
    ),
    "color": (
        ("What color is {a}?", "What colour is {a}?", "What color does {a} have?"),
        ("And what color is it?", "What color is it?", "What colour is it?"),
        "{A} is {color}.",
    ),
    "sound": (
        ("What sound does {a} make?", "What does {a} say?", "Which sound does {a} make?"),
        ("And what sound does it make?", "What sound does it make?"),
        "{A} {sound}.",
    ),
    "legs": (
        ("How many legs does {a} have?", "How many legs do {ks} have?"),
        ("And how many legs does it have?", "How many legs does it have?"),
        "{A} has {legs} legs.",
    ),
    "baby": (
        ("What is a baby {k} called?", "What do you call a baby {k}?", "What is a young {k} called?"),
        ("And what is its baby called?", "What is its baby called?"),
        "A baby {k} is called {a_baby}.",
    ),
    "about": (
        ("Tell me about {ks}.", "Tell me about {a}.", "What do you know about {ks}?", "What is {a}?"),
        ("Tell me more about it.", "What else do you know about it?"),
        "{A} is an animal that lives in {home}. It is {color}, and it eats {eats}.",
    ),
}
"""The questions about an animal: in full, in short where "it" is clear, and the answer to both."""


def animal_fact(rng: random.Random, topic: str, kind: str, short: bool) -> tuple[str, str]:
    """One question about `kind`, in short ("it") or in full, and its answer."""
    animal = ANIMALS[kind]
    fields = asdict(animal) | {"k": kind, "ks": PLURALS.get(kind, kind + "s"), "a_baby": a(animal.baby)}
    fields |= {"a": a(kind), "A": a(kind).capitalize()}
    full_questions, short_questions, answer = FACTS[topic]
    question = rng.choice(short_questions if short else full_questions)
    return question.format_map(fields), answer.format_map(fields)


def animals(rng: random.Random) -> Turns:
    """Facts about an animal; a later turn says only "it", or only the name of another animal."""
    kind, other = rng.sample(list(ANIMALS), 2)
    topics = rng.sample(("eats", "eats", "home", "home", "color", "sound", "legs", "baby", "about"), rng.randint(1, 3))
    turns = [animal_fact(rng, topics[0], kind, short=False)]
    for topic in topics[1:]:
        if topic == topics[0]:
            _, answer = animal_fact(rng, topic, other, short=False)
            follow = rng.choice(("And {}?", "What about {}?", "And what about {}?", "How about {}?"))
            turns.append((follow.format(a(other)), answer))
            kind = other
        else:
            turns.append(animal_fact(rng, topic, kind, short=True))
    return turns


def counting(rng: random.Random) -> Turns:
    """Counting up, then backwards, or what comes next."""
    start = rng.choice((1, 1, 1, rng.randint(1, 20)))
    stop = start + rng.randint(2, 14)
    values = list(map(str, range(start, stop + 1)))
    ask = rng.choice(("Count from {} to {}.", "Please count from {} to {}.", "Can you count from {} to {}?"))
    if start == 1:
        ask = rng.choice((ask, "Count to {1}.", "Please count to {1}.", "Can you count to {1}?"))
    turns = [(ask.format(start, stop), ", ".join(values) + ".")]
    if rng.random() < 0.3:
        turns.append((rng.choice(("And backwards?", "Now count backwards.")), ", ".join(reversed(values)) + "."))
    elif rng.random() < 0.4:
        turns.append((rng.choice(("What comes next?", "And what comes next?")), f"After {stop} comes {stop + 1}."))
    return turns


def sums(rng: random.Random) -> Turns:
    """A sum or difference, then a number to add to the result."""
    x, sign, y, result = numbers.draw_sum(rng, rng.choice((10, 10, 20)))
    style = rng.random()
    if style < 0.4:
        asked, answer = f"{x} {sign} {y}", f"{x} {sign} {y} = {result}."
    elif style < 0.55:
        asked, answer = f"{x}{sign}{y}", f"{x} {sign} {y} = {result}."
    else:
        asked = f"{x} {'plus' if sign == '+' else 'minus'} {y}"
        answer = f"{asked} is {result}."
    ask = rng.choice(("What is {}?", "What is {}?", "How much is {}?", "Can you tell me what {} is?", "{} = ?", "{}?"))
    turns = [(ask.format(asked), answer)]
    if rng.random() < 0.4:
        z = rng.randint(1, 5)
        more = rng.choice(("And plus {}?", "Now add {}.", "Add {} to it.")).format(z)
        turns.append((more, f"{result} + {z} = {result + z}."))
    return turns


def opposites(rng: random.Random) -> Turns:
    """The opposite of a word, then a short question about another."""
    (x, not_x), (y, not_y) = (pair[:: rng.choice((1, -1))] for pair in rng.sample(words.OPPOSITES, 2))
    ask = rng.choice(("What is the opposite of {}?", "Tell me the opposite of {}.", "What is the opposite of '{}'?"))
    turns = [(ask.format(x), f"The opposite of {x} is {not_x}.")]
    if rng.random() < 0.6:
        follow = rng.choice(("And of {}?", "And the opposite of {}?", "What about {}?", "And {}?"))
        turns.append((follow.format(y), f"The opposite of {y} is {not_y}."))
    return turns


ASK_STORY = (
    "Tell me a story about {}.",
    "Can you tell me a story about {}?",
    "I want to hear a story about {}.",
    "Please tell me a story about {}.",
    "Write a short story about {}.",
    "A story about {}, please.",
)


def story(rng: random.Random) -> Turns:
    """A story on request, then questions that only its text answers."""
    kind = stories.draw_kind(rng)
    name = None
    about = a(kind)
    if rng.random() < 0.3:
        name = rng.choice(
            {True: words.GIRLS, False: words.BOYS, None: words.GIRLS + words.BOYS}[words.PEOPLE.get(kind)]
        )
        about += f" named {name}"
    tale = stories.tell(rng, kind, name)
    request = rng.choice(ASK_STORY).format(about)
    if rng.random() < 0.15:
        tale = stories.tell(rng)
        request = rng.choice(
            ("Tell me a story.", "Please tell me a story.", "Can you tell me a story?", "Write a short story.")
        )
    questions = tale.questions[:1] if rng.random() < 0.5 else []
    questions += rng.sample(tale.questions[1:], min(rng.choice((0, 1, 2)), len(tale.questions) - 1))
    turns = [(request, tale.text), *questions]
    if rng.random() < 0.12:
        kind = stories.draw_kind(rng)
        again = rng.choice(("Now tell me a story about {}.", "And now one about {}.", "Another one about {}, please."))
        turns.append((again.format(a(kind)), stories.tell(rng, kind).text))
    return turns


def closing(rng: random.Random) -> Turns:
    """Thanks, praise or goodbye."""
    thanks = (
        ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!"),
        ("You are welcome!", "I am happy to help!"),
    )
    bye = (
        ("Goodbye!", "Bye!", "Bye bye!", "See you later!", "Good night!"),
        ("Goodbye! Have a nice day!", "See you soon!"),
    )
    both = (("Thanks, bye!", "Thank you and goodbye!"), ("You are welcome! Goodbye!",))
    nice = (
        ("That was a nice answer.", "Very good!", "Great!", "I like that."),
        ("I am glad you like it!", "Thank you!"),
    )
    return [(rng.choice(said), rng.choice(answers)) for said, answers in rng.sample((thanks, bye, both, nice), 1)]
