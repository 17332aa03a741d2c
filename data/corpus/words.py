"""Word lists and small facts shared by the story and the dialogue grammars."""

from __future__ import annotations

import random
from dataclasses import dataclass


def listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of `text`; with a separator, the phrases between separators."""
    return tuple(text.split(separator))


def a(noun: str) -> str:
    """`noun` with its indefinite article: "a fox", "an owl"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def draw_name(rng: random.Random, names: tuple[str, ...]) -> str:
    """One of `names`, or sometimes an invented one, so that the model learns to copy names it has not seen."""
    if rng.random() < 0.9:
        return rng.choice(names)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 2, 3)))).capitalize()


@dataclass(frozen=True)
class Animal:
    """What the corpus knows about one kind of animal; every text that mentions the animal agrees with it."""

    eats: str
    home: str
    color: str
    sound: str
    legs: int
    baby: str


ANIMALS: dict[str, Animal] = {
    "fox": Animal("mice and berries", "a den in the forest", "orange", "yips", 4, "cub"),
    "rabbit": Animal("grass and carrots", "a burrow under the meadow", "gray", "squeaks", 4, "kit"),
    "bear": Animal("honey and fish", "a cave in the hills", "brown", "growls", 4, "cub"),
    "mouse": Animal("seeds and cheese", "a hole in the wall", "gray", "squeaks", 4, "pup"),
    "owl": Animal("mice and beetles", "a hollow oak tree", "brown", "hoots", 2, "owlet"),
    "cat": Animal("fish and mice", "a cottage with a red door", "black", "meows", 4, "kitten"),
    "dog": Animal("meat and bones", "a kennel behind the house", "brown", "barks", 4, "puppy"),
    "duck": Animal("water plants and worms", "the reeds by the pond", "white", "quacks", 2, "duckling"),
    "frog": Animal("flies and worms", "a green pond", "green", "croaks", 4, "tadpole"),
    "hedgehog": Animal("slugs and beetles", "a pile of leaves in the garden", "brown", "snuffles", 4, "hoglet"),
    "squirrel": Animal("nuts and acorns", "a tall pine tree", "red", "chatters", 4, "kit"),
    "deer": Animal("grass and leaves", "the quiet forest", "brown", "grunts", 4, "fawn"),
    "goat": Animal("grass and leaves", "a shed on the mountain", "white", "bleats", 4, "kid"),
    "sheep": Animal("grass and clover", "a field on the farm", "white", "bleats", 4, "lamb"),
    "horse": Animal("hay and oats", "a stable on the farm", "brown", "neighs", 4, "foal"),
    "turtle": Animal("lettuce and water plants", "a warm pool by the lake", "green", "hisses", 4, "hatchling"),
    "hen": Animal("corn and seeds", "a henhouse on the farm", "brown", "clucks", 2, "chick"),
    "beaver": Animal("bark and twigs", "a lodge on the river", "brown", "whines", 4, "kit"),
    "badger": Animal("worms and roots", "a deep den under the hill", "gray", "grunts", 4, "cub"),
    "otter": Animal("fish and crabs", "a den by the river", "brown", "whistles", 4, "pup"),
    "mole": Animal("worms and grubs", "a tunnel under the field", "black", "squeaks", 4, "pup"),
    "pig": Animal("corn and apples", "a pen on the farm", "pink", "oinks", 4, "piglet"),
    "wolf": Animal("meat and fish", "the dark forest", "gray", "howls", 4, "pup"),
    "lion": Animal("meat", "the wide grassland", "yellow", "roars", 4, "cub"),
    "elephant": Animal("leaves and fruit", "the warm savanna", "gray", "trumpets", 4, "calf"),
    "monkey": Animal("bananas and nuts", "the green jungle", "brown", "chatters", 4, "infant"),
    "penguin": Animal("fish and shrimp", "the icy south", "black and white", "honks", 2, "chick"),
    "crow": Animal("seeds and insects", "a nest on the old tower", "black", "caws", 2, "chick"),
    "cow": Animal("grass and hay", "a barn on the farm", "black and white", "moos", 4, "calf"),
    "donkey": Animal("hay and thistles", "a small barn by the road", "gray", "brays", 4, "foal"),
}
CREATURES: dict[str, str] = {
    "dragon": "a cave in the mountains",
    "robot": "a workshop in the city",
    "snail": "a quiet corner of the garden",
    "bee": "a hive in the orchard",
    "ant": "a hill of sand in the forest",
    "butterfly": "a field full of flowers",
    "bird": "a nest in an old tree",
    "tiger": "the green jungle",
    "giraffe": "the warm savanna",
    "whale": "the deep blue sea",
    "fish": "a clear lake",
    "dinosaur": "a valley full of ferns",
    "fairy": "a house made of leaves",
    "giant": "a castle in the clouds",
    "snowman": "a garden in the north",
}
PEOPLE: dict[str, bool | None] = {
    "girl": True,
    "boy": False,
    "princess": True,
    "prince": False,
    "queen": True,
    "king": False,
    "knight": None,
    "baker": None,
    "farmer": None,
    "sailor": None,
    "witch": True,
    "wizard": False,
}
"""Kinds of people; whether their pronouns are female, None where they may be either."""
PEOPLE_HOMES = (
    "a small house by the sea",
    "a little town near the mountains",
    "a blue house at the edge of the village",
    "a farmhouse near the river",
    "a tall house in the city",
    "a village in a green valley",
)
GIRLS = listed(
    "Lily Ruby Daisy Molly Rosie Anna Mia Ella Nora Ivy Hazel Clara Lucy Penny Tessa Willow Maya Zoe Bella Poppy "
    "Stella Luna Emma Sara Flora Nina Olive Heidi"
)
BOYS = listed(
    "Tom Max Ben Sam Oliver Leo Finn Jack Toby Milo Oscar Henry Felix Hugo Charlie Theo Jasper Otto Rusty Bruno "
    "Pip Barney Teddy Noah Arthur Ned Simon Walter"
)
TRAITS = listed("little small young kind curious shy cheerful clever gentle quiet friendly busy")
COLORS = listed("red blue green yellow purple pink white orange silver golden black brown")
THINGS = listed(
    "kite bell boat drum whistle lantern basket cup spoon wagon flute umbrella doll puppet mirror plate clock mug comb "
    "mask"
)
SOFT_THINGS = listed("ball scarf hat ribbon blanket feather mitten coat sock pillow button key coin marble book")
PLACES = listed("river,forest,meadow,hill,pond,lake,orchard,field,park,old mill,stone bridge,garden", ",")
SPOTS = (
    "under a pile of leaves",
    "behind a big stone",
    "in the tall grass",
    "under an old log",
    "beside a tree stump",
    "behind a bush",
    "in a hollow tree",
    "under a wooden bench",
    "next to a fence",
    "between two roots",
)
FOODS = listed(
    "apple pie,loaf of bread,bowl of soup,basket of berries,jar of honey,plate of pancakes,bag of nuts,pumpkin cake,"
    "pot of stew,box of cookies,bunch of grapes,big sweet pear",
    ",",
)
WEATHER = listed("sunny windy cloudy cold warm snowy rainy misty bright cool")
DAY_PARTS = ("morning", "day", "afternoon")
LIKES = (
    "to watch the clouds",
    "to sing little songs",
    "to collect round stones",
    "to jump in puddles",
    "to count the stars",
    "to eat warm soup",
    "to play outside",
    "to hear old stories",
    "to draw pictures in the sand",
    "to run in the wind",
    "to sleep late",
    "to help at home",
)
OPPOSITES = tuple(
    tuple(pair.split("/"))
    for pair in listed(
        "hot/cold big/small happy/sad fast/slow day/night up/down open/closed old/young bright/dark wet/dry "
        "full/empty loud/quiet hard/soft clean/dirty left/right early/late near/far rich/poor sweet/sour long/short "
        "heavy/light strong/weak in/out high/low thick/thin good/bad first/last always/never"
    )
)
THING_COLORS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "a banana": "yellow",
    "coal": "black",
    "a lemon": "yellow",
    "a tomato": "red",
    "a carrot": "orange",
    "a strawberry": "red",
    "milk": "white",
    "a pumpkin": "orange",
    "a cucumber": "green",
    "chocolate": "brown",
    "the sea": "blue",
    "a plum": "purple",
    "blood": "red",
    "the night": "black",
    "a frog": "green",
    "a pig": "pink",
}
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
SEASONS = ("spring", "summer", "autumn", "winter")
SYLLABLES = listed("ka lo mi ra ven tu zo ne bri sa du fel go pa xi wen ro la ki mar")
