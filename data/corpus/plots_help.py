"""Plots in which the hero gets or gives help: a lost thing, a skill to learn, a meal to share."""

from .plot import FRIENDS, MEET, THANKS, WHERE, WHO_HELPED, Plot
from .words import SOFT_THINGS, THINGS

LOST = Plot(
    [
        [
            (
                "{n} had {a_obj} and took it everywhere.",
                "The thing {he} loved most was {his} {obj}.",
                "{His} favorite thing in the whole world was {a_obj}.",
            ),
            (
                "{when}, {n} went to the {place} with {his} {obj}.",
                "{when}, {he} took the {obj} to the {place} to play.",
            ),
            ("{He} ran and jumped and laughed until noon.", "{He} played there for a long time.", ""),
            (
                "But when {he} looked around, the {obj} was gone!",
                "Then {he} fell asleep, and when {he} woke up, the {obj} was gone!",
                "When it was time to go home, {he} could not find the {obj}.",
            ),
        ],
        [
            (
                "{n} looked {s1}, but the {obj} was not there. {He} looked {s2}, but it was not there either.",
                "{He} looked {s1} and {s2}, but there was nothing.",
            ),
            ("{n} sat down and began to cry.", "{n} felt very sad.", '"Oh no," said {n}. "What can I do now?"'),
            MEET,
            ('"Why are you so sad?" asked {m}.', '"What is wrong?" asked {m}.', '"Can I help you?" asked {m}.'),
            ('"I lost my {obj}," said {n}.', '"My {obj} is gone," {n} answered.'),
            ('"Do not worry. We will find it together," said {m}.', '"I will help you look for it," said {m}.'),
        ],
        [
            ("They searched all around the {place}.", "So they looked everywhere, side by side.", ""),
            (
                "At last, {m} looked {s3}, and there was the {obj}!",
                "Then {m} saw something {s3}. It was the {obj}!",
                '"Look!" called {m}. The {obj} was {s3}.',
            ),
            THANKS,
            FRIENDS,
        ],
    ],
    (
        "it is easier to find things with a friend",
        "a problem is smaller when you share it",
        "it is good to ask for help",
    ),
    {"thing": tuple({"thing": thing} for thing in THINGS + SOFT_THINGS)},
    (
        WHO_HELPED,
        WHERE,
        (
            ("What did {n} lose?", "What did the {k} lose?", "What was lost?"),
            ("{n} lost {a_obj}.", "{He} lost {his} {obj}."),
        ),
        (("Where was the {obj}?", "Where did they find it?"), ("The {obj} was {s3}.", "They found it {s3}.")),
    ),
)

LEARN = Plot(
    [
        [
            ("More than anything, {n} wanted to {skill}.", "{n} had one big wish. {He} wanted to {skill}."),
            (
                "All the others could do it, but {n} could not.",
                "But {he} did not know how.",
                "But it looked very hard.",
            ),
        ],
        [
            ("{when}, {he} went to the {place} to try.", "{when}, {n} went to the {place} all alone to try it."),
            ("{He} tried once, and {fail}.", "At first, {fail}."),
            ("{He} tried again, but it did not work.", "The second time was no better.", ""),
            ('"I will never learn it," said {n}.', '"This is too hard for me," {he} said.'),
            MEET,
            (
                '"I could not do it at first either," said {m}. "Let me show you."',
                '"I can teach you," said {m}. "But you must be patient."',
                '"Try it slowly," said {m}. "One step at a time."',
            ),
        ],
        [
            ("Every day, {n} practiced with {m}.", "So {n} and {m} practiced all week."),
            ("Some days were hard, but {n} did not give up.", "Little by little, it got better.", ""),
            (
                "Then one morning, it worked! {n} could {skill} at last.",
                "And at last, {n} could {skill} all alone!",
            ),
            ('"I did it!" {he} shouted. "I really did it!"', '"You see?" said {m}. "You can do it."', THANKS[0]),
        ],
    ],
    ("practice makes hard things easy", "you should never give up", "learning takes time"),
    {
        "skill": (
            {"skill": "swim", "fail": "{n} only got water in {his} nose"},
            {"skill": "whistle", "fail": "there was only a puff of air"},
            {"skill": "fly a kite", "fail": "the kite fell into the mud"},
            {"skill": "skate", "fail": "{n} fell down with a bump"},
            {"skill": "bake bread", "fail": "the bread came out black"},
            {"skill": "play the flute", "fail": "the flute only squeaked"},
            {"skill": "climb the tall tree", "fail": "{n} slid back down to the ground"},
            {"skill": "dance", "fail": "{n} tripped over {his} own feet"},
            {"skill": "read", "fail": "the letters made no sense"},
            {"skill": "paint a rainbow", "fail": "all the colors ran together"},
            {"skill": "row a boat", "fail": "the boat went round in circles"},
            {"skill": "jump over the stream", "fail": "{n} landed in the water with a splash"},
        )
    },
    (
        (
            ("Who taught {n}?", "Who was the teacher?", "Who helped {n}?", "Who helped {him}?"),
            ("{m} the {mk} taught {n} to {skill}.", "{n} learned it from {a_mk} named {m}."),
        ),
        (
            ("What did {n} want to learn?", "What did the {k} want to do?", "What was the wish?"),
            ("{n} wanted to {skill}.",),
        ),
        WHERE,
    ),
)

SHARE = Plot(
    [
        [
            (
                "{when}, {n} found {a_food} {s1}.",
                "{when}, somebody gave {n} {a_food}.",
                "{when}, {n} had {a_food} for lunch.",
            ),
            ("It smelled wonderful.", "It was big enough for two.", "{He} was very proud of it.", ""),
            (
                '"I will eat it all by myself," {he} said, and {he} carried it to the {place}.',
                "{He} took it to the {place} so that nobody could ask for some.",
            ),
        ],
        [
            MEET,
            ("{m} looked thin and tired.", "{m} had walked a long way.", "{m} sat down and sighed."),
            (
                '"I have not eaten all day," said {m}.',
                '"That smells so good," said {m}. "I am very hungry."',
                '"My basket is empty," said {m}. "I have nothing to eat."',
            ),
            (
                "{n} looked at the {food}. Then {he} looked at {m}.",
                "{n} wanted to say no. But {he} saw how hungry {m} was.",
                "{n} thought about it for a moment.",
            ),
            ('"Come and sit with me," said {n}. "We can share it."', '"Here, take half of it," said {n}.'),
        ],
        [
            ("They ate together in the sun.", "They sat side by side and ate every crumb.", "So they shared it."),
            (
                '"It tastes much better with you here," said {n}.',
                "It was the best meal {n} had ever had.",
                '"You are very kind," said {m}.',
            ),
            (
                "The next day, {m} came back with {a_food2} for {n}.",
                "A week later, {m} brought {n} {a_food2}.",
                "",
            ),
            FRIENDS,
        ],
    ],
    ("food tastes better when you share it", "sharing makes new friends", "kindness comes back to you"),
    facts=(
        (("What did {n} share?", "What did the {k} share?", "What did they eat?"), ("They shared {a_food}.",)),
        (
            ("Who was hungry?", "Who did {n} share with?", "Who did the {k} meet?"),
            ("It was {m} the {mk}.", "It was {a_mk} named {m}."),
        ),
    ),
)
