"""The clusters that are measured, and what one engine alone answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoinfer.bench.cluster.workloads import Size
from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.serve.settings import ClusterSettings, ReplicaSettings
from nanoinfer.frontends.llm import LLM
from nanoinfer.requests.sampling_params import SamplingParams

# An accelerator's shape: passes cost something, prompts cost much, and few rows cost little. It is slowed down so much that
# what is measured is these times, and not the processors that the door and six replicas share.
SLEEP = PassCosts(4e-2, 5e-4, 1e-3, 1e-7, source="as if from an accelerator, slowed down")
SLEEPING_VOCABULARY = 32_000


@dataclass(frozen=True)
class Setup:
    """`threads`: engines that compute, one thread each. `sleep`: engines whose model only takes its time. `size`: of the
    traffic."""

    name: str
    replicas: int
    model: str
    options: dict[str, Any]
    sleeps: bool
    size: Size

    def settings(self, name: str, policy: str, policy_options: dict[str, Any]) -> ClusterSettings:
        """Such a cluster. Each needs a name of its own: Ray's router remembers the replicas of the last one of a name, and
        sends requests to them."""
        costs = SLEEP if self.sleeps else None
        replica = ReplicaSettings(self.model, self.options, threads=1, costs=costs, sleeps=self.sleeps)
        return ClusterSettings(
            replica,
            self.replicas,
            cpus_per_replica=0.1,
            policy=policy,
            policy_options=policy_options,
            name=name,
            drain_timeout_s=10.0,
        )

    def answers(self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int]) -> list[list[int]]:
        """What one engine alone answers, greedily."""
        if self.sleeps:
            return [
                [(prompt[-1] + 1 + i) % SLEEPING_VOCABULARY for i in range(most)]
                for prompt, most in zip(prompts, max_tokens, strict=True)
            ]
        params = [SamplingParams(max_new_tokens=most, temperature=0, ignore_eos=True) for most in max_tokens]
        outputs = LLM(self.model, **self.options).generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return [output.token_ids for output in outputs]


def setups(model: str, seconds: float = Size.seconds) -> dict[str, Setup]:
    """By name. `seconds`: of each workload."""
    few = {"max_total_tokens": 6144, "max_running_requests": 16}
    many = {**few, "max_total_tokens": 16_384, "max_context_len": 4096}
    small = Size(seconds, burst_prefixes=2, burst_clients=12, burst_prefix=512, burst_s=0.1)
    return {
        "threads": Setup("threads", 2, model, few, False, small),
        "sleep": Setup("sleep", 6, "sleeping", many, True, Size(seconds)),
    }
