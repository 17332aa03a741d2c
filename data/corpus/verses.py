"""Plots in rhymes: skeletons as in `plot`, with couplets for sentences.

A couplet is two lines whose last words rhyme (`rhymes.FAMILIES`). Besides the fields of `plot` there are `{a_thing}`, and
`{A_m}` for the beginning of a sentence. A line ends with a word or with `{he}`.
"""

from __future__ import annotations

from .plot import Plot, Slot


def couplets(text: str) -> Slot:
    """The couplets of `text`, which empty lines separate."""
    return tuple(couplet.strip() for couplet in text.split("\n\n"))


def plot(text: str) -> Plot:
    """A plot from its text: a line of `=` separates stanzas, a line of `-` the couplets that follow each other."""
    stanzas = [[couplets(slot) for slot in stanza.split("\n---\n")] for stanza in text.split("\n===\n")]
    return Plot(stanzas, ("",))


LIVED = (
    "Once upon a time, there was a {t} {k} named {n} who lived",
    "Once upon a time, a {t} {k} named {n} lived",
    "There was once a {t} {k} called {n} who lived",
    "There was a {t} {k} named {n} who lived",
    "{n} was a {t} {k} who lived",
    "Long ago, a {t} {k} named {n} lived",
    "A {t} {k} named {n} lived",
    "Once there was a {t} {k} called {n} who lived",
    "One {weather} {part}, a {t} {k} named {n} woke up",
    "It was {a_weather} {part} when a {t} {k} named {n} woke up",
)
"""How a story in rhymes starts: as others do, so that the same prompt suits both. `WHERE` completes the first line."""

WHERE = couplets("""
by a tree,
and no one was ever as happy as {he}.

under a tree,
and sang with the bird and the fly and the bee.

close to the bay,
and had a new song for the start of each day.

in a nest of soft hay,
and had a new song for the start of each day.

down by the mill,
and ran every day to the top of the hill.

close to the hill,
where the air was so clear and the meadow so still.

close to the town,
in a warm little house that was yellow and brown.

next to the stream,
and sat in the sun every morning to dream.

by an old stone wall,
and was not very big and was not very tall.

by the side of the wood,
and always was looking for things that were good.

at the end of the lane,
and loved to go out for a walk in the rain.

close to the lake,
and at the first light {he} was always awake.
""")

ENDINGS = couplets("""
And so they were friends from that wonderful day.
They met every morning to sing and to play.

And {n} and {m}, they were friends to the end,
for nothing on earth is as good as a friend.

They sat side by side till the moon was up high,
and counted the stars in the wide open sky.

They danced and they sang in the light of the moon,
and all of the birds came to join in the tune.

They walked home together. The stars were so bright.
"Sleep well," whispered {m}. "Sleep well, and good night!"

So share what you have and be gentle and kind,
and what you have given you always will find.

So do not be sad when the day has been long.
A friend and a smile make you happy and strong.
""")

LOST = plot("""
{He} had {a_thing} that was shiny and new,
with three little stars, and the stars were all blue.

{n} had {a_thing} that {he} loved every day.
{He} took it along when {he} went out to play.

{n} had {a_thing}, and the {thing} was bright red.
{He} kept it at night by the side of {his} bed.
===
But then came a wind, and it carried away
the {thing} that {he} loved, on that very same day.

But then {he} looked up, and {he} looked all around.
The {thing} was not there, and it could not be found.

But when {he} woke up in the bright morning light,
the {thing} was not there. It was gone in the night.
---
{He} looked in the grass and behind every stone,
and then {he} sat down, and {he} cried all alone.

{He} looked in the garden, {he} looked in the lane,
and tears from {his} eyes fell as big as the rain.
===
Then {a_m} named {m} came to sit by the tree.
"Do not cry any more! Come and look now with me!"

Then {a_m} named {m} came along on the way.
"Do not cry! We will find it before the next day."
---
They looked by the pond and they looked by the mill,
and there was the {thing}, at the foot of the hill.

They looked here and there, and they looked far and near.
"Your {thing}!" shouted {m}. "Come and look! It is here!"

They looked up and down till the end of the day,
and there was the {thing}, in a pile of old hay.
""")

SHARE = plot("""
{n} had {a_food}, and it smelled very good.
{He} took it to eat it alone in the wood.

A neighbor gave {n} {a_food} one day.
"I will eat it alone," {he} said, "down by the bay."
===
But {a_m} named {m} came along down the lane,
all tired and hungry and wet from the rain.

Then {a_m} named {m} came and sat on a stone.
"I am hungry," said {m}, "and I am all alone."
---
{n} looked at {his} food, and {he} thought for a while.
"Come, sit here beside me," {he} said with a smile.

"Here, take half of mine," whispered {n}. "That is fair.
The best thing to do with a meal is to share."
===
They ate every crumb in the light of the sun,
and then they both laughed, for to share is such fun.

They ate side by side on the grass by the lake,
and nothing was better, not cookies, not cake.
---
The next day came {m} with some freshly made bread.
"For you, because you were so kind," {m} said.

The next day came {m} to the house with a cake.
"For you," answered {m}. "I have learned how to bake."
""")

BRAVE = plot("""
{n} feared only one thing. {He} feared the dark night,
and would not go out without bringing a light.

{n} was so afraid of the thunder and rain
that {he} never went out to the end of the lane.
===
But then came a cry from the top of the hill.
"Please help me!" it called, and then all became still.

One night came a cry from the side of the lake.
"Please help me! Please help me! Is no one awake?"
---
{n} shook like a leaf, but {he} opened the door
and ran through the dark, not afraid any more.

"I am scared," whispered {n}, "but I hear someone cry.
I may be quite small, but I must go and try."
===
And there in the mud, what was it {he} found?
{A_m} named {m}, stuck fast in the ground.

And there was {a_m} named {m} by a tree,
held fast by a branch, and could not get free.
---
{n} pulled and {he} pulled with a rope that was long,
and {m} was soon free, for our {k} was so strong.

"You saved me!" said {m}. "You are brave, it is true."
"I was scared," answered {n}, "but I did it for you."
""")

SICK = plot("""
Each day {he} met {m} the {mk} to play,
but {m} was not there on this one {weather} day.

Each day {he} met {m} the {mk} by the mill,
but one {weather} morning the path there was still.
===
{n} ran to {m}'s home, and {m} was in bed,
with a cold in the nose and an ache in the head.

So {n} ran to look, and {he} knocked at the door,
for {m} had not ever been late before.
---
"I feel very weak," whispered {m} from the bed.
"Then I will take care of you, {m}," {n} said.

"I am sick," whispered {m}. "Do not worry, my dear,"
said {n}. "I will cook you some soup and stay here."
===
{He} made a hot soup and {he} made a hot tea,
and told a long tale of a bear and a bee.

{He} brought {a_food}, and {he} sang a soft song,
and sat by the bed for the whole evening long.
---
In three days {m} jumped out of bed with a cheer.
"I am well! I am well! It is good you were here!"

In three days the cold and the ache went away,
and {m} and {n} could go out then and play.
""")

SEED = plot("""
{He} found a small seed by the side of the lane
and planted it there in the sun and the rain.

The wind blew a seed to {his} feet on the ground.
"Oh look," whispered {n}, "oh look what I found!"
===
{n} gave it some water each night and each day,
but nothing came up from the mud and the clay.

{He} waited for one day, {he} waited for two,
but nothing came out, and no little leaf grew.
---
Then {a_m} named {m} came along. "Let it be!
That seed will not grow to a bush or a tree."

Then {a_m} named {m} came and asked with a sigh,
"Why water the mud when the seed is so dry?"
===
"I will wait," answered {n}. "I know it is slow.
A seed needs its time and the sun, and will grow."

"It is small," answered {n}, "but soon you will see.
Just wait, and one day it will be a tall tree."
---
And then came a leaf, and it grew and it grew,
and soon there were flowers, all yellow and blue.

And then in the spring, in the warmth of the sun,
there came a green leaf, and the waiting was done.
""")

PLOTS = (LOST, SHARE, BRAVE, SICK, SEED)
