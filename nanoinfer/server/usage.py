"""Usage: how many tokens an answer took."""

from typing import Any

from nanoinfer.server.generation import Generation


def usage_of(generation: Generation, hide_output: bool = False) -> dict[str, Any]:
    """OpenAI's `usage`. Each of `n` choices counts, also those that are copies; a prompt counts once. `hide_output`: the
    answer is only the prompt."""
    wish = generation.wish
    output = 0 if hide_output else generation.counts.output_tokens * wish.copies
    return {
        "prompt_tokens": wish.prompt_tokens,
        "completion_tokens": output,
        "total_tokens": wish.prompt_tokens + output,
        "prompt_tokens_details": {"cached_tokens": generation.counts.cached_tokens},
    }
