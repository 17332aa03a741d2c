"""`python -m nanoinfer demo sessions`: the first engine of the notebooks decodes three requests side by side."""

import argparse

from nanoinfer.cli.options import load
from nanoinfer.sessions.inference import InferenceEngine
from nanoinfer.sessions.offline_scheduler import OfflineScheduler
from nanoinfer.terminal import styled

PROMPTS = ("Once upon a time, there was a fox", "One day, a little", "In the forest,")
MAX_NEW_TOKENS = 48


def run(args: argparse.Namespace) -> None:
    """Serve the prompts greedily with an OfflineScheduler, and print the texts with an empty line between them."""
    scheduler = OfflineScheduler(InferenceEngine(load(args, needs_text=True).model))
    for prompt in PROMPTS:
        scheduler.add_request(prompt, MAX_NEW_TOKENS, do_sample=False)
    texts = [f"{styled(f'### request {i}', 'bold')}\n{text.rstrip()}" for i, text in scheduler.run().items()]
    print("\n\n".join(texts))
