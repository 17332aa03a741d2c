"""What the clients ask: conversations of several turns, which all begin with the same system prompt.

A conversation's answers are drawn, not the model's own, so that every server gets the same prompts. The text has about as
many tokens as `Lengths` says, whatever the model's tokenizer is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

TURNS = 3
TEXT = """
the and was his her they said had day big little dog cat girl boy tree house ball park bird red blue happy sad mom dad play
run went home saw very good new friend one two with for from then help found sun rain water food box car hill sky star book
door smile nice old small long walk jump sing look take give want like love time
"""
WORDS = TEXT.split()


@dataclass(frozen=True)
class Lengths:
    """Tokens of a conversation's parts: the system prompt, a question, an earlier answer; and of the answer asked for."""

    system: int = 96
    question: int = 24
    answer: int = 32
    new_tokens: int = 32

    @property
    def longest(self) -> int:
        """About as many tokens as the last turn has, its answer included; 16 per turn are for the names of the parts."""
        return self.system + TURNS * (self.question + 16) + (TURNS - 1) * self.answer + self.new_tokens


class Writer:
    """Draws texts. `count`: how many tokens a text has, by the model's tokenizer."""

    def __init__(self, count: Callable[[str], int], lengths: Lengths):
        self.lengths = lengths
        self._per_word = max(1.0, count(" ".join(WORDS)) / len(WORDS))

    def text(self, rng: Random, tokens: int) -> str:
        """About `tokens` tokens."""
        return " ".join(rng.choices(WORDS, k=max(1, round(tokens / self._per_word))))


class Conversations:
    """The prompts of one cell: `prompt(i)` is that of its i-th request.

    `seed` decides the conversations, `shared_seed` the system prompt. So many conversations as are `together` take turns.
    """

    def __init__(self, writer: Writer, shared_seed: str, seed: str, together: int):
        self._writer, self._seed, self._together = writer, seed, together
        self._system = writer.text(Random(shared_seed), writer.lengths.system)

    def prompt(self, number: int) -> str:
        """The turns of a conversation up to the one that this request asks for."""
        rounds, place = divmod(number, self._together)
        conversation, turn = rounds // TURNS * self._together + place, rounds % TURNS
        rng, lengths = Random(f"{self._seed}/{conversation}"), self._writer.lengths
        lines = [self._system]
        for earlier in range(turn + 1):
            lines += [f"User: {self._writer.text(rng, lengths.question)}", "Assistant:"]
            answer = self._writer.text(rng, lengths.answer)
            if earlier < turn:
                lines[-1] += f" {answer}"
        return "\n".join(lines)
