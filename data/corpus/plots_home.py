"""Plots about friendship and patience: a gift, a lie, a quarrel, a seed, a sick friend."""

from .plot import FRIENDS, MEET, Plot

GIFT = Plot(
    [
        [
            ("{n} had a good friend, {a_m} named {m}.", "{His} best friend was {a_m} named {m}."),
            ("{when}, it was {m}'s birthday.", "{when}, {n} remembered that it was {m}'s birthday."),
            ("But {n} had no gift and no money to buy one.", '"But I have nothing to give," said {n}.'),
        ],
        [
            (
                "{He} went to the {place} and thought about it.",
                "So {he} walked to the {place} to look for something nice.",
            ),
            ("There {he} found {part1} and {part2}.", "{s1_up}, {he} found {part1} and {part2}."),
            ('"I know!" said {n}. "I will make {gift}."', 'Then {he} had an idea. "I can make {gift}!"'),
            (
                "{He} worked all afternoon.",
                "It took a long time, but {he} did not stop.",
                "{He} worked until the sun went down.",
            ),
        ],
        [
            ("In the evening, {n} gave {m} {gift}.", "{n} was a little afraid that {m} would not like it."),
            (
                '"Did you make this for me?" asked {m}. "It is the best gift of all!"',
                '"It is beautiful!" said {m}. "Nobody has ever made something for me."',
            ),
            ("They ate {a_food} and sang until late.", "Then they shared {a_food}.", "They danced under the stars."),
            ("{n} was very happy.", "{m} keeps {gift} to this day.", "{m} kept it forever."),
        ],
    ],
    ("the best gifts are made with love", "a gift does not need money", "a gift from the heart is never small"),
    {
        "gift": (
            {"gift": "a crown of flowers", "part1": "some daisies", "part2": "a soft green vine"},
            {"gift": "a little wooden boat", "part1": "a piece of bark", "part2": "a big leaf for the sail"},
            {"gift": "a necklace of shells", "part1": "seven tiny shells", "part2": "a long string"},
            {"gift": "a warm nest of wool", "part1": "some soft wool", "part2": "a few dry twigs"},
            {"gift": "a picture of the two friends", "part1": "a flat stone", "part2": "some red clay to paint with"},
            {"gift": "a wind chime", "part1": "five smooth sticks", "part2": "an old bell"},
        )
    },
    (
        (
            ("What did {n} make?", "What was the gift?", "What did the {k} make?"),
            ("{n} made {gift}.", "It was {gift}."),
        ),
        (
            ("Whose birthday was it?", "Who got the gift?"),
            ("It was {m}'s birthday.", "It was the birthday of {m} the {mk}."),
        ),
    ),
)

HONEST = Plot(
    [
        [
            ("{n} had a friend, {a_m} named {m}.", "Next door lived {a_m} named {m}."),
            ("{m} had {a_obj} and was very proud of it.", "{m} owned {a_obj} that shone in the sun."),
            ("{when}, {n} borrowed the {obj} without asking.", "{when}, {n} took the {obj} just to look at it."),
            ("But it slipped, fell on a stone, and broke.", "Then {he} tripped, and the {obj} broke in two."),
        ],
        [
            ("{n} was scared. {He} hid the {obj} {s1}.", "Nobody had seen it, so {he} hid the {obj} {s1}."),
            ('Soon {m} came. "Have you seen my {obj}?"', '"My {obj} is gone!" said {m}. "Do you know where it is?"'),
            ('"No," said {n}, and {his} face grew hot.', '"I have not seen it," said {n} in a small voice.'),
            (
                "That night, {n} could not sleep.",
                "All evening, {his} stomach hurt.",
                "But the lie felt heavy, like a stone.",
            ),
        ],
        [
            ("In the morning, {n} went to {m} and told the truth.", "At last {n} went to {m}."),
            ('"I broke your {obj}, and I lied," {he} said. "I am so sorry."',),
            (
                '{m} was quiet for a moment. "I am sad about it," said {m}, "but I am glad you told me."',
                '"Thank you for telling me the truth," said {m}. "We can mend it."',
            ),
            ("They mended the {obj} with some glue.", "Together they fixed the {obj}, and it looked almost new."),
            ("{n} felt light again.", FRIENDS[0], FRIENDS[1]),
        ],
    ],
    ("it is always better to tell the truth", "a lie is heavier than the truth", "a good friend forgives"),
    facts=(
        (
            ("What did {n} break?", "What broke?", "What did the {k} break?"),
            ("{n} broke the {obj}.", "It was the {obj}."),
        ),
        (("Where did {n} hide it?", "Where was the {obj} hidden?"), ("{n} hid the {obj} {s1}.",)),
        (
            ("Whose {thing} was it?", "Who owned the {obj}?"),
            ("It belonged to {m} the {mk}.", "The {obj} belonged to {m}."),
        ),
    ),
)

QUARREL = Plot(
    [
        [
            ("{n} often played with {a_m} named {m}.", "{His} neighbor was {a_m} named {m}."),
            ("{when}, they found {a_obj} by the {place}.", "{when}, by the {place}, they saw {a_obj} {s1}."),
            ('"It is mine!" said {n}. "I saw it first!"', '"I want it!" cried {n}.'),
            ('"No, it is mine!" said {m}.', '"But I want it too!" said {m}.'),
        ],
        [
            (
                "They pulled and pulled until the {obj} broke.",
                "They pulled so hard that the {obj} flew into the water.",
            ),
            ("Now nobody had it.", "They both fell into the mud.", "Suddenly it was very quiet."),
            ("{n} went home without a word.", "They did not talk for three days."),
            (
                "But it was no fun to play alone.",
                "But {n} missed {m} very much.",
                "{n} looked out of the window and sighed.",
            ),
        ],
        [
            ("At last {n} went back to the {place}. {m} was there too.", "Then {n} knocked on {m}'s door."),
            ('"I am sorry," said {n}.', '"I was wrong," said {n}. "Please forgive me."'),
            ('"I am sorry too," said {m}. "Let us make a new one together."', '"Me too," said {m}. "I missed you."'),
            ("They laughed and ran off to play.", "And they shared {a_food}.", "They never fought about a toy again."),
        ],
    ],
    ("a friend is worth more than a toy", "it is good to say sorry", "two can play where two can share"),
    facts=(
        (
            ("What did they fight about?", "Why did they fight?", "What did they both want?"),
            ("They both wanted the {obj}.",),
        ),
        (("Who was the friend?", "Who did {n} fight with?", "Who else is in the story?"), ("It was {m} the {mk}.",)),
    ),
)

SEED = Plot(
    [
        [
            ("{when}, {n} found a tiny seed {s1}.", "{when}, the wind blew a tiny seed in front of {n}."),
            ('"What will it be?" {he} asked.', '"I wonder what will grow from it," said {n}.'),
            (
                "{He} planted it near the {place} and gave it water.",
                "{He} made a small hole by the {place} and put it in.",
            ),
        ],
        [
            (
                "The next day, {n} came back, but nothing had grown.",
                "{He} waited one day. {He} waited two days. Nothing grew.",
            ),
            MEET,
            ('"That seed is dead," said {m}. "Come and play."', '"Why do you water the mud?" asked {m}.'),
            ('"I will wait a little longer," said {n}.', '"It only needs some time," said {n}.'),
            ("Every morning, {he} brought fresh water.", "{He} watered it, and {he} sang to it.", ""),
        ],
        [
            ("After a week, a small green leaf came out.", "Then one morning, there was a little green leaf!"),
            ("It grew and grew, until it was {plant}.", "By summer, it was {plant}."),
            ('"You were right," said {m}. "It was worth the wait."', '{m} could not believe it. "How wonderful!"'),
            ("{n} and {m} sat under it and shared {a_food}.", "{n} smiled and gave it some more water."),
        ],
    ],
    ("good things take time", "patience makes small things grow", "you must wait for the best things"),
    {
        "plant": tuple(
            {"plant": plant}
            for plant in (
                "a tall sunflower",
                "a young apple tree",
                "a bush full of roses",
                "a cherry tree",
                "a giant pumpkin plant",
            )
        )
    },
    (
        (("What did {n} find?", "What did the {k} plant?"), ("{n} found a tiny seed.", "It was a tiny seed.")),
        (("What grew from it?", "What did the seed become?"), ("It grew into {plant}.", "It became {plant}.")),
    ),
)

SICK = Plot(
    [
        [
            (
                "Every day, {n} met {a_m} named {m} by the {place}.",
                "{n} and {a_m} named {m} always met by the {place}.",
            ),
            ("{when}, {m} did not come.", "{when}, {n} waited and waited, but {m} did not come."),
            ('"That is strange," said {n}.', "{n} began to worry.", ""),
            ("{He} went to {m}'s home and knocked on the door.", "So {he} ran to {m}'s home."),
        ],
        [
            ("{m} was in bed with a bad cold.", "{m} was sick and could not get up."),
            (
                '"I feel so weak," said {m}.',
                '"I am cold and I am sad," said {m}.',
                '"Do not come too close," said {m}.',
            ),
            ('"Stay in bed," said {n}. "I will take care of you."', '"Do not worry," said {n}. "I am here now."'),
            ("{n} brought {a_food} and a warm blanket.", "{n} ran home and came back with {a_food}."),
            ("Then {he} told a funny story, and {m} laughed.", "Then {he} sang until {m} fell asleep.", ""),
        ],
        [
            ("After three days, {m} was well again.", "The next morning, {m} felt much better."),
            ('"You are the best friend in the world," said {m}.', '"Thank you for staying with me," said {m}.'),
            ("Then they went back to the {place} to play.", FRIENDS[1], FRIENDS[2]),
        ],
    ],
    (
        "a friend is there on bad days too",
        "a kind heart is the best medicine",
        "caring for others makes everyone happy",
    ),
    facts=(
        (("Who was sick?", "Who was ill?"), ("{m} the {mk} was sick.",)),
        (("What did {n} bring?", "What did the {k} bring?"), ("{n} brought {a_food}.",)),
        (("Where did they meet?", "Where did they always meet?"), ("They met by the {place}.",)),
    ),
)
