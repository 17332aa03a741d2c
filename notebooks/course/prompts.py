"""The running example of the notebooks: four short prompts about the same fox, and a long one.

In tokens of the bundled model ("story"), `<s>` included: FOX and BEAR have 14 each and share the first 10; RIVER has 19 and
begins with all 14 of FOX; HELLO has 8 and shares only `<s>` with the others; STORY has about 250 and begins with FOX.
"""

FOX = "Once upon a time, there was a little fox named Lily."
RIVER = FOX + " She lived near the river"
BEAR = "Once upon a time, there was a little bear named Max."
HELLO = "Hello! I am a little fox"
FOX_PROMPTS = (FOX, RIVER, BEAR, HELLO)

STORY = (
    FOX + " One day, Lily found a tiny seed under a pile of leaves. "
    '"What will it be?" she asked. She made a small hole near the pond, put the seed in, and gave it water.\n\n'
    "She waited one day. She waited two days. Nothing grew. Soon a busy hen named Heidi came along the path. "
    '"Why do you water the mud?" asked Heidi. "It is not mud," said Lily. "There is a seed in it." '
    '"That seed is dead," said Heidi. "Come and play." "I will wait a little longer," said Lily.\n\n'
    "The next morning, Lily brought fresh water. Then a kind boy named Teddy came by. "
    '"That seed is too small," said Teddy. "Come and play." '
    '"It only needs some time," said Lily. All week the sun was hot, and every evening Lily ran to the pond for water. '
    "When the wind blew, she put a big stone next to the hole. When it was cold, she put a warm blanket on it. "
    "At night, she looked at the stars and told the seed a funny story.\n\n"
    "Then one morning, there was a little green leaf!"
)
