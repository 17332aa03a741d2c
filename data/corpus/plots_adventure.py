"""Plots with some danger: a fear to face, a treasure to find."""

from .plot import FRIENDS, Plot

BRAVE = Plot(
    [
        [
            ("{n} was afraid of {fear}.", "There was one thing {n} feared. It was {fear}."),
            ("{He} never told anyone about it.", "Sometimes the others laughed about it.", ""),
            (
                "{when}, {n} was by the {place} when {he} heard a cry.",
                "{when}, a cry came from the {place}. {n} ran there.",
            ),
            ('"Help! Please help me!" somebody called.', '"Is anybody there?" called a small voice.'),
        ],
        [
            ("It was {a_m} named {m}, {stuck}.", "There was {a_m} named {m}, {stuck}."),
            ("To help, {n} had to face {fear}.", "But to get there, {n} had to face {fear}."),
            ("{His} heart beat fast and {his} legs shook.", "{n} took a deep breath.", "{n} wanted to run away."),
            ('"I am scared," {n} thought, "but {m} needs me."', '"I can be brave for a little while," {n} thought.'),
            ("Step by step, {he} went on.", "So {he} closed {his} eyes for a moment and then went on."),
            ("{n} {tool}, and soon {m} was free.", "At last {he} reached {m}. {n} {tool}, and {m} was safe."),
        ],
        [
            (
                '"You saved me!" said {m}. "You are so brave."',
                '"Thank you, {n}," said {m}. "Were you not afraid?"\n\n"I was," said {n}. "But I came anyway."',
            ),
            ("After that, {fear} did not seem so bad.", "{n} was not so afraid of {fear} any more."),
            FRIENDS,
        ],
    ],
    ("being brave means going on when you are afraid", "helping others makes us strong", "a small heart can be brave"),
    {
        "fear": ({"fear": "the dark"}, {"fear": "deep water"}, {"fear": "thunder"}, {"fear": "high places"}),
        "stuck": (
            {"stuck": "stuck in the mud", "tool": "held out a long stick"},
            {"stuck": "caught in a thorn bush", "tool": "pulled the thorns away one by one"},
            {"stuck": "trapped in a deep hole", "tool": "let down a strong rope"},
            {"stuck": "stuck under a fallen branch", "tool": "pushed the branch away"},
        ),
    },
    (
        (("What was {n} afraid of?", "What was the {k} afraid of?"), ("{n} was afraid of {fear}.",)),
        (
            ("Who did {n} save?", "Who called for help?", "Who was in trouble?"),
            ("It was {m} the {mk}.", "It was {a_mk} named {m}."),
        ),
        (("What happened to {m}?", "Why did {m} need help?"), ("{m} was {stuck}.",)),
    ),
)

TREASURE = Plot(
    [
        [
            ("{when}, {n} found {clue} {s1}.", "{when}, {n} looked {s1} and found {clue}."),
            ("It showed the way to the {place}.", "On it, somebody had drawn the {place}."),
            ('"A treasure!" said {n}. "I must find it."', "{n} was so excited that {he} forgot to eat.", ""),
        ],
        [
            ("On the way, {n} met {a_m} named {m}.", "But the way was long. Then {n} met {a_m} named {m}."),
            ('"Where are you going?" asked {m}.', '"What do you have there?" asked {m}.'),
            (
                '"I am looking for a treasure. Do you want to come?"',
                '"Come with me," said {n}. "Two can see more than one."',
            ),
            ("Together they crossed {barrier}.", "They came to {barrier}. {m} knew how to get across."),
            ("They looked {s2}. Nothing.", "They dug in one place, but they found only stones.", ""),
        ],
        [
            ("Then {n} looked {s3} and saw an old box.", "At last they found an old box {s3}."),
            ("Slowly, they opened it. Inside was {a_obj}.", "Inside the box there was {a_obj}."),
            (
                '"It is not gold," said {n}, "but I like it."',
                '"It is only {a_obj}," said {m}, and they both laughed.',
            ),
            ("{n} gave it to {m} to remember the day.", FRIENDS[0], FRIENDS[2]),
        ],
    ],
    ("the best treasure is a good friend", "the way can be better than the prize", "every day can be an adventure"),
    {
        "clue": tuple(
            {"clue": clue} for clue in ("an old map", "a letter in a bottle", "a strange drawing", "a torn page")
        ),
        "barrier": tuple({"barrier": b} for b in ("a cold stream", "a deep ditch", "a shaky bridge", "a muddy swamp")),
    },
    (
        (("What was in the box?", "What did they find in the box?", "What was the treasure?"), ("It was {a_obj}.",)),
        (("Who came along?", "Who helped {n}?", "Who was the friend?"), ("It was {m} the {mk}.",)),
        (("How did it start?", "What did {n} find first?"), ("{n} found {clue} {s1}.",)),
    ),
)
