"""TRACES: all kinds of traffic by name."""

from nanoinfer.cluster.simulate import published_traffic as published
from nanoinfer.cluster.simulate.arrivals import Arrivals
from nanoinfer.cluster.simulate.production import Mooncake, azure
from nanoinfer.cluster.simulate.synthetic import Agents, Bursts, Chat, SharedPrompts
from nanoinfer.cluster.simulate.trace import Trace

TRACES: dict[str, type[Trace]] = {
    "chat": Chat,
    "shared": SharedPrompts,
    "bursts": Bursts,
    "agents": Agents,
    "azure-conversation-2023": azure("AzureConversation2023", published.AZURE_2023_CONVERSATION),
    "azure-code-2023": azure("AzureCode2023", published.AZURE_2023_CODE),
    "azure-conversation-2024": azure("AzureConversation2024", published.AZURE_2024_CONVERSATION),
    "azure-code-2024": azure("AzureCode2024", published.AZURE_2024_CODE),
    "mooncake": Mooncake,
}


def make_trace(
    name: str,
    rate: float,
    seed: int = 0,
    scale: float = 1.0,
    shape: float | None = None,
    think_scale: float = 1.0,
) -> Trace:
    """The trace of this name. ValueError that names the field which is wrong."""
    if name not in TRACES:
        raise ValueError(f"trace={name!r}: must be one of {', '.join(TRACES)}")
    if not scale > 0:
        raise ValueError(f"scale={scale!r}: must be above 0")
    if not think_scale >= 0:
        raise ValueError(f"think_scale={think_scale!r}: must be at least 0")
    Arrivals(rate, 1.0 if shape is None else shape)  # checks them
    return TRACES[name](rate, seed, scale, shape, think_scale)
