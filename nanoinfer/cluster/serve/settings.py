"""ClusterSettings: what is deployed. ReplicaSettings: the part that each replica needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanoinfer.cluster.costs import PassCosts
from nanoinfer.cluster.policies import POLICIES
from nanoinfer.cluster.policy import check_above_zero, check_count
from nanoinfer.config import EngineConfig
from nanoinfer.engine.engine import Engine
from nanoinfer.llm import LLM


@dataclass(frozen=True)
class ReplicaSettings:
    """`model` and `options`: as LLM takes them. `threads`: of torch, per replica; None: as Ray sets it, one per CPU.

    `event_block_size`: it tells what its tree holds in blocks of so many tokens. `silence_s`: an ingress that asks for
    nothing so long is dead.
    `costs`: of its passes, for PrefixRouter; None: each replica measures them when it starts, which takes seconds.
    `sleeps`: with this, its passes compute nothing and sleep as long as `costs` say; `options` are then EngineConfig's.
    """

    model: str = "story"
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    event_block_size: int = 16
    silence_s: float = 15.0
    costs: PassCosts | None = None
    sleeps: bool = False

    def __post_init__(self) -> None:
        if self.sleeps and self.costs is None:
            raise ValueError("sleeps=True: needs costs, which say for how long")

    def load(self) -> LLM | Engine:
        """The model, in the calling process."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if not self.sleeps:
            return LLM(self.model, **self.options)
        from nanoinfer.cluster.simulate.sleeping import sleeping_engine

        assert self.costs is not None
        return sleeping_engine(EngineConfig(**self.options), self.costs)

    def measure(self, llm: LLM | Engine) -> PassCosts | None:
        """Its passes' costs, measured if they are not given; None if they cannot be measured."""
        if self.costs is not None or not isinstance(llm, LLM):
            return self.costs
        if llm.config.num_scheduler_steps > 1 or llm.config.drafters:
            return None
        from nanoinfer.cluster.calibrate import calibrate

        costs = calibrate(llm, rounds=1)
        llm.engine.flush_cache()
        return costs


@dataclass(frozen=True)
class ClusterSettings:
    """What `deploy` deploys. ValueError naming the field for a value that is out of range.

    - `replica`; `replicas`: how many at first; `max_replicas`: with more than `replicas`, their number follows the queued
      tokens, `queued_tokens_per_replica` of which are fine. `cpus_per_replica`: what Ray sets aside for each.
    - `policy` and `policy_options`: of POLICIES, see `make_policy`.
    - `name`: of the two applications, NAME (the ingress) and NAME-replicas.
    - `silence_s`: a replica that says nothing for so long has lost its calls, which move to others. `replica_timeout_s`:
      how long a call looks for a replica that takes it. `most_moves`: how often a call may move before it fails.
    - `drain_timeout_s`: for calls at a replica or ingress that is told to end. `health_check_period_s`: between two
      looks at them; one that does not answer for `health_check_timeout_s` is replaced.
    """

    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    replicas: int = 2
    max_replicas: int | None = None
    queued_tokens_per_replica: float = 4096.0
    cpus_per_replica: float = 1.0
    policy: str = "prefix"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "nanoinfer"
    silence_s: float = 15.0
    replica_timeout_s: float = 60.0
    most_moves: int = 4
    drain_timeout_s: float = 30.0
    health_check_period_s: float = 2.0
    health_check_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("replicas", "most_moves"):
            check_count(name, getattr(self, name), least=1)
        if self.max_replicas is not None:
            check_count("max_replicas", self.max_replicas, least=self.replicas)
        seconds = (
            "silence_s",
            "replica_timeout_s",
            "drain_timeout_s",
            "health_check_period_s",
            "health_check_timeout_s",
        )
        for name in (*seconds, "cpus_per_replica", "queued_tokens_per_replica"):
            check_above_zero(name, getattr(self, name))
        blocks = self.policy_options.get("block_size", self.replica.event_block_size)
        if self.policy == "prefix" and blocks != self.replica.event_block_size:
            raise ValueError(f"block_size={blocks!r}: must be event_block_size={self.replica.event_block_size}")
        if not self.name or not self.name.replace("-", "").isalnum():
            raise ValueError(f"name={self.name!r}: must be letters, digits and dashes")
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: must be one of {', '.join(POLICIES)}")

    @property
    def replicas_name(self) -> str:
        """The application of the replicas."""
        return f"{self.name}-replicas"
