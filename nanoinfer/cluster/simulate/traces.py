"""Traffic with the published statistics of production, each with its source; and TRACES: all kinds of traffic by name.

- **Azure 2023** (AzurePublicDataset, "Azure LLM inference trace 2023", one hour of two services). Patel et al., "Splitwise"
  (ISCA 2024), section III-A: median prompts of 1,020 (conversation) and 1,500 tokens (code), median outputs of 129 and
  13. Its quantiles were not printed, so the spread around these medians is that of 2024's trace of the same service.
- **Azure 2024** (AzurePublicDataset, "Azure LLM inference trace 2024"; Stojkovic et al., "DynamoLLM"): a week, 27.3 million
  requests to a conversation service and 16.8 million to a code service. Medians, 90th and 99th percentiles below are
  those of the published files, and so are the gaps between arrivals (median over mean, of 2 million requests in a row):
  1.37 ms / 15.33 ms and 2.34 ms / 19.06 ms. For Poisson arrivals that would be 0.69. The ends (shares 0 and 1) are set
  so that the means come out as in the files: prompts of 1,632 and 2,511 tokens, outputs of 106 and 23.
- **Mooncake** (Qin et al., "Mooncake: a KVCache-centric disaggregated architecture", arXiv 2407.00079, section 4.2): an
  hour with 23,608 requests, 7,590 prompt and 182 output tokens on average. One cache of unlimited size has half of the
  prompt tokens. In the published file, all requests begin with the same block of 512 tokens.
"""

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from nanoinfer.cluster.simulate.distributions import Arrivals, Lengths, Quantiles
from nanoinfer.cluster.simulate.sessions import Turn
from nanoinfer.cluster.simulate.trace import Agents, Bursts, Chat, SegmentMaker, SharedPrompts, Trace


@dataclass(frozen=True)
class AzureConversation2024(Trace):
    """Single requests with the lengths and bursts of an Azure service. Of prompts' contents nothing was published, so none
    share tokens: no policy gains by where they go, and what is left is the balance."""

    prompt: ClassVar[Quantiles] = Quantiles(((0, 150), (0.5, 928), (0.9, 3830), (0.99, 6683), (1, 7999)))
    output: ClassVar[Quantiles] = Quantiles(((0, 1), (0.5, 41), (0.9, 342), (0.99, 694), (1, 800)))
    shape: ClassVar[float] = 0.18945589918667938  # of Gamma: gives the published gaps

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        prompt = make.new(self._length(self.prompt, rng))
        return (Turn((prompt,), make.new(self._length(self.output, rng))),)


class AzureCode2024(AzureConversation2024):
    prompt = Quantiles(((0, 120), (0.5, 1930), (0.9, 6251), (0.99, 7685), (1, 7743)))
    output = Quantiles(((0, 1), (0.5, 8), (0.9, 43), (0.99, 271), (1, 600)))
    shape = 0.21360227940584853


class AzureConversation2023(AzureConversation2024):
    prompt = AzureConversation2024.prompt.scaled(1020 / 928)
    output = AzureConversation2024.output.scaled(129 / 41, most=1500)


class AzureCode2023(AzureCode2024):
    prompt = AzureCode2024.prompt.scaled(1500 / 1930)
    output = AzureCode2024.output.scaled(13 / 8)


@dataclass(frozen=True)
class Mooncake(Trace):
    """Long documents that are asked about again: `more` is the probability of one more turn. With these figures,
    prompts and outputs are as long as published, and an unlimited cache has half of the prompt tokens. All begin with the
    same `beginning` tokens."""

    more: float = 0.465
    beginning: ClassVar[int] = 512
    document: ClassVar[Lengths] = Quantiles(((0, 260), (0.5, 3800), (0.9, 11800), (0.99, 35000), (1, 90000)))
    question: ClassVar[Lengths] = Quantiles(((0, 20), (0.5, 250), (0.9, 1200), (1, 6000)))
    answer: ClassVar[Lengths] = Quantiles(((0, 5), (0.5, 65), (0.9, 420), (1, 1600)))
    think_s: float = 30.0

    @property
    def requests_per_session(self) -> float:
        return 1 / (1 - self.more)

    @property
    def lasts_s(self) -> float:
        return 4 * self.think_s

    def turns(self, rng: Random, make: SegmentMaker) -> tuple[Turn, ...]:
        shared = max(1, round(self.beginning * self.scale))
        history = [make.shared("mooncake", self.seed, shared), make.new(self._length(self.document, rng))]
        found = list[Turn]()
        while True:
            history.append(make.new(self._length(self.question, rng)))
            answer = make.new(self._length(self.answer, rng))
            think = rng.expovariate(1 / self.think_s) if found else 0.0
            found.append(Turn(tuple(history), answer, think, (len(found) - 1,) if found else ()))
            history.append(answer)
            if rng.random() >= self.more:
                return tuple(found)


TRACES: dict[str, type[Trace]] = {
    "chat": Chat,
    "shared": SharedPrompts,
    "bursts": Bursts,
    "agents": Agents,
    "azure-conversation-2023": AzureConversation2023,
    "azure-code-2023": AzureCode2023,
    "azure-conversation-2024": AzureConversation2024,
    "azure-code-2024": AzureCode2024,
    "mooncake": Mooncake,
}


def make_trace(name: str, rate: float, seed: int = 0, scale: float = 1.0) -> Trace:
    """The trace of this name. ValueError that names the field which is wrong."""
    if name not in TRACES:
        raise ValueError(f"trace={name!r}: must be one of {', '.join(TRACES)}")
    Arrivals(rate)  # checks it
    return TRACES[name](rate, seed, scale)
