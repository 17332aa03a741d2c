"""What has been published of production traffic: lengths, rates and bursts, each with its source. Nothing else is known
here: traces.py generates traffic from these statistics.

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

from nanoinfer.cluster.simulate.lengths import Quantiles


@dataclass(frozen=True)
class Service:
    """Lengths of prompts and outputs in tokens, and the bursts: the median gap between arrivals over the mean gap."""

    prompt: Quantiles
    output: Quantiles
    median_gap: float


AZURE_2024_CONVERSATION = Service(
    Quantiles(((0, 150), (0.5, 928), (0.9, 3830), (0.99, 6683), (1, 7999))),
    Quantiles(((0, 1), (0.5, 41), (0.9, 342), (0.99, 694), (1, 800))),
    1.37 / 15.33,
)
AZURE_2024_CODE = Service(
    Quantiles(((0, 120), (0.5, 1930), (0.9, 6251), (0.99, 7685), (1, 7743))),
    Quantiles(((0, 1), (0.5, 8), (0.9, 43), (0.99, 271), (1, 600))),
    2.34 / 19.06,
)
AZURE_2023_CONVERSATION = Service(
    AZURE_2024_CONVERSATION.prompt.scaled(1020 / 928),
    AZURE_2024_CONVERSATION.output.scaled(129 / 41, most=1500),
    AZURE_2024_CONVERSATION.median_gap,
)
AZURE_2023_CODE = Service(
    AZURE_2024_CODE.prompt.scaled(1500 / 1930), AZURE_2024_CODE.output.scaled(13 / 8), AZURE_2024_CODE.median_gap
)
MOONCAKE_PROMPT_TOKENS, MOONCAKE_OUTPUT_TOKENS, MOONCAKE_HIT_RATE, MOONCAKE_SHARED = 7590, 182, 0.5, 512
