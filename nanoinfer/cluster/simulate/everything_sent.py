"""EverythingSent: what one infinitely large cache would have had of each prompt."""

from nanoinfer.cluster.simulate.segments import chain
from nanoinfer.cluster.simulate.sessions import Turn


class EverythingSent:
    """Remembers all prompts as soon as they are sent, and all answers when they have ended: no routing finds more, but for
    tokens that are equal by chance."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def send(self, turn: Turn) -> int:
        """A prompt. Returns how many of its first tokens were there before; the last one is always computed."""
        keys, tokens = chain(turn.prompt), 0
        for key, segment in zip(keys, turn.prompt, strict=True):
            if key not in self._seen:
                break
            tokens += segment.length
        self._seen.update(keys)
        return min(tokens, turn.prompt_tokens - 1)

    def end(self, turn: Turn) -> None:
        """The answer to it is complete."""
        self._seen.add(chain((*turn.prompt, turn.answer))[-1])
