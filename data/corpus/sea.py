"""Stories that end well at sea: they start as the plots of `stories` do, then a ship comes."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from . import plots_adventure, plots_help, plots_home, stories
from .plot import Plot, Slot

SHIPS = tuple(
    f"a {ship}" for ship in ("big white ship", "tall ship", "small blue ship", "ship with red sails", "fast green ship")
)
SHIP_COMES = (
    "Then {n} heard a bell and saw {ship}.",
    "Just then, {ship} came in from the sea.",
    "Then {ship} came up the river.",
)
CAPTAIN = ("Its captain was {a_m} named {m}.", "On it stood the captain, {a_m} named {m}.")
ON_BOARD = (
    "Then {he} went on board with a happy heart.",
    '"Ahoy!" called the sailors. "Come on board!"',
    "The sailors gave {him} a hat with a golden anchor.",
)
FILLED_SAILS = (
    "The wind filled the sails, and {n} and {m} went out to sea with the sailors.",
    "In the evening, {n} and {m} sailed out to sea, and all the sailors waved.",
    "So {n} and {m} sailed out to sea on the ship.",
)
AT_SEA = (
    "The waves were blue, and the sailors sang.",
    "Dolphins jumped over the waves, and the sailors danced.",
    "They ate {a_food2} with the sailors and counted the stars over the waves.",
    "A whale came and sang with the sailors.",
)
SAID = (
    '"This is the best day of my life," said {n}.',
    '"I want to be a sailor too!" said {n}.',
    '"The sea is so big!" said {n}, and the captain laughed.',
    "",
)
ENDINGS = (
    "From that day on, {n} was a happy sailor on the wide blue sea.",
    "And {n} and {m} were happy at sea ever after.",
    "And there they sail to this day, happy on the deep blue sea.",
)
END = [FILLED_SAILS, AT_SEA, SAID, ENDINGS]

SKILLS = tuple(
    choice
    for choice in plots_help.LEARN.choices["skill"]
    if choice["skill"] not in ("skate", "climb the tall tree", "jump over the stream")
)
"""What one can learn on a ship."""


def at_sea(plot: Plot, *middle: Slot) -> Plot:
    """`plot` with its first paragraph, `middle` as the second, and an end at sea."""
    return replace(plot, paragraphs=[plot.paragraphs[0], list(middle), END])


LOST = at_sea(
    plots_help.LOST,
    ("{n} sat down and began to cry.", '"Oh no," said {n}. "What can I do now?"'),
    SHIP_COMES,
    CAPTAIN,
    (
        '"Ahoy! Is this your {obj}?" called {m}. "It came to us on a wave."',
        '"We found {a_obj} in our net," called {m}. "Is it yours?"',
    ),
    ('"Yes! Thank you, captain!" said {n}.', '"My {obj}!" said {n}. "Thank you, captain!"'),
    ('"Come and sail with us," said {m}.', ON_BOARD[1]),
)
LEARN = at_sea(
    replace(plots_help.LEARN, choices={"skill": SKILLS}),
    SHIP_COMES,
    CAPTAIN,
    ('"Why are you so sad?" asked {m}.', '"Ahoy! What is wrong?" called {m}.'),
    ('"I want to {skill}, but I cannot do it," said {n}.', '"I will never learn to {skill}," said {n}.'),
    ('"Sail with us," said {m}. "At sea there is time to learn."', '"Come on board," said {m}. "We will show you."'),
    (
        "Every day, {n} practiced with the sailors, and soon {n} could {skill}.",
        "{n} practiced on the ship for ten days. Then {n} could {skill} at last!",
    ),
)
SHARE = at_sea(
    plots_help.SHARE,
    SHIP_COMES,
    CAPTAIN,
    ("The sailors looked thin and tired.", "The sailors had come a long way."),
    ('"We have not eaten for three days," said {m}.', '"Our baskets are empty," said {m}.'),
    ('"Here, take this," said {n}. "We can share it."', '"Come and sit with me," said {n}. "We can share it."'),
    ("They ate every crumb.", "It was the best meal of all."),
    ('"You are very kind," said {m}. "Come and sail with us."', ON_BOARD[1]),
)
BRAVE = at_sea(
    plots_adventure.BRAVE,
    ("It was {a_m} named {m}, a sailor, {stuck}.", "There was a sailor, {a_m} named {m}, {stuck}."),
    ("To help, {n} had to face {fear}.", "But to get there, {n} had to face {fear}."),
    ('"I am scared," {n} thought, "but {m} needs me."', "{n} took a deep breath."),
    ("{n} {tool}, and soon {m} was free.", "Step by step, {he} went on. {n} {tool}, and {m} was safe."),
    ('"You are as brave as a sailor," said {m}.', '"You saved me!" said {m}.'),
    ('"Come with me to my ship!"', '"My ship is near. Come and sail with us!"'),
)
GIFT = at_sea(
    plots_home.GIFT,
    ("So {n} walked down to the sea and thought about it.", "{n} sat down by the sea."),
    SHIP_COMES,
    (
        '"A day at sea is the best gift," said the captain.',
        '"Bring your friend to my ship," called the captain.',
    ),
    ("{n} ran to {m}.", "{n} went to {m} at once."),
    (
        '"Happy birthday, {m}!" said {n}. "We are going to sail!"',
        '"I have no gift," said {n}, "but I found a ship for us."',
    ),
    ('"It is the best gift of all!" said {m}.', '"Nobody has ever given me a ship!" said {m}.'),
)
HONEST = at_sea(
    plots_home.HONEST,
    ("{n} was so scared that {he} ran to the sea and hid on {ship}.", "{n} ran away and hid on {ship}."),
    ("But the lie felt heavy, like an anchor.", "But {he} could not sleep there."),
    ('"Tell the truth," said an old sailor.', '"A true word is a good wind," said the captain.'),
    ('{n} went to {m}. "I broke your {obj}," {he} said. "I am so sorry."',),
    ('"I am glad you told me," said {m}.', '"Thank you for telling me the truth," said {m}.'),
    (
        "The sailors mended the {obj} with some rope, and it looked almost new.",
        "The sailors mended the {obj} and took them both on board.",
    ),
)
QUARREL = at_sea(
    plots_home.QUARREL,
    ("They pulled so hard that the {obj} flew into the water.", "They pulled, and the {obj} fell into the water."),
    ("Suddenly it was very quiet.", "Now nobody had it."),
    ('"I am sorry," said {n}. "I am sorry too," said {m}.',),
    SHIP_COMES,
    (
        'A sailor had the {obj} in his net. "Ahoy! Is this yours?"',
        'The captain held up the {obj}. "This came to us on a wave."',
    ),
    ('"It is for both of us," said {n}.', '"We will share it now," said {m}.'),
    ('"Then sail with us," said the captain.', ON_BOARD[1]),
)
SEED = at_sea(
    plots_home.SEED,
    ("{He} waited and waited, until it was {plant}.", "It grew and grew, until it was {plant}."),
    ("One day, {ship} came in from the sea.", SHIP_COMES[1]),
    CAPTAIN,
    ('"How wonderful!" said {m}. "At sea there is nothing green."', '"I have not seen {plant} for years," said {m}.'),
    ('"Take a leaf of it with you," said {n}.', "{n} gave {m} a leaf of it to keep."),
    ('"Come with us," said {m}. "I will show you the sea."', ON_BOARD[1]),
)
SICK = at_sea(
    plots_home.SICK,
    ("{m} was in bed with a bad cold.", "{m} was sick and could not get up."),
    ('"I feel so weak," said {m}.', '"I am cold and I am sad," said {m}.'),
    ('"The wind of the sea will help you," said {n}.', '"You need the warm sun of the south," said {n}.'),
    ("{He} ran to the sailors of {ship} and asked for help.", "{n} went to {ship} and asked the captain for help."),
    ("The sailors carried {m} on board in a warm blanket.",),
    ("After three days on the ship, {m} was well again.", "Soon {m} felt much better."),
)
TREASURE = at_sea(
    plots_adventure.TREASURE,
    SHIP_COMES,
    CAPTAIN,
    ('"Where are you going?" asked {m}.', '"What do you have there?" asked {m}.'),
    ('"I am looking for a treasure," said {n}.',),
    ('"It is on an island," said {m}. "Sail with us!"', '"Two can see more than one," said {m}. "Sail with us!"'),
    ("On an island, they found an old box in the sand. Inside was {a_obj}.",),
    ('"It is not gold," said {n}, "but I like it."', '"It is only {a_obj}," said {m}, and they both laughed.'),
)
PLOTS = (LOST, LEARN, SHARE, BRAVE, GIFT, HONEST, QUARREL, SEED, SICK, TREASURE)


def ends_at_sea(text: str) -> bool:
    """Whether the last paragraph of a story is on a ship at sea: it names the sea, and sailing or sailors."""
    last = text.strip().rpartition("\n\n")[2]
    return re.search(r"\bsea\b", last) is not None and re.search(r"\bsail", last) is not None


def tell(rng: random.Random, kind: str | None = None, name: str | None = None) -> str:
    """One story that ends at sea; the arguments are those of `rhymes.tell`."""
    plot = rng.choice(PLOTS)
    fields = stories.draw_fields(rng, plot, kind, name)
    fields["ship"] = rng.choice(SHIPS)
    opening = stories.open_story(rng, fields)
    paragraphs = [[rng.choice(slot).format_map(fields) for slot in paragraph] for paragraph in plot.paragraphs]
    paragraphs[0].insert(0, opening)
    text = "\n\n".join(" ".join(filter(None, sentences)) for sentences in paragraphs)
    return text + rng.choice(stories.END)
