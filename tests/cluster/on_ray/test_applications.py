"""What is deployed, without a Ray that runs: only its libraries are needed."""

from nanoinfer.cluster.policies import make_policy
from nanoinfer.cluster.serve.settings import ClusterSettings
from nanoinfer.config import EngineConfig

CONFIG = EngineConfig(max_running_requests=3, max_total_tokens=512, max_context_len=256, chunked_prefill_size=None)


def test_the_doors_router_knows_how_much_a_replica_does_at_once() -> None:
    """Otherwise it takes a replica whose batch is full for one that begins at once."""
    from nanoinfer.cluster.serve.applications import fleet_arguments

    settings = ClusterSettings(policy_options={"max_imbalance_s": 3.0})
    wanted = {"block_size": 16, "max_running_requests": 3, "chunk_tokens": 256, "max_imbalance_s": 3.0}
    arguments = fleet_arguments(settings, CONFIG)
    assert (arguments["policy"], arguments["options"]) == ("prefix", wanted)
    make_policy("prefix", None, wanted)
    own = ClusterSettings(policy_options={"max_running_requests": 2, "chunk_tokens": 64})
    assert fleet_arguments(own, CONFIG)["options"] == {"max_running_requests": 2, "chunk_tokens": 64, "block_size": 16}


def test_what_another_policy_does_not_take_is_not_given_to_it() -> None:
    from nanoinfer.cluster.serve.applications import fleet_arguments

    assert fleet_arguments(ClusterSettings(policy="least-loaded"), CONFIG)["options"] == {}
