"""What Qwen3's chat template leaves of an agent's prefix: it keeps reasoning in a tool loop, and drops it afterwards."""

import shutil
from typing import Any

import pytest

from nanoinfer import LLM
from tests.helpers.real_tokenizers import real_tokenizer

ROUNDS = 3
THOUGHT = "The user asks about a town. I have not looked at it yet, so I call the tool, and then I compare. " * 4
RESULT = "cold, dry, and windy in the evening. " * 4
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny random model with Qwen3's tokenizer and template."""
    import transformers

    files = real_tokenizer("qwen3")
    path = tmp_path_factory.mktemp("qwen3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files / name, path)
    size = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "head_dim": 16,
    }
    config = transformers.LlamaConfig(vocab_size=151_936, num_key_value_heads=1, max_position_embeddings=2048, **size)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return LLM(path, max_total_tokens=4096)


class Agent:
    """A conversation whose answers are given. Each prompt goes to the engine with its answer, so that both are cached, as
    after an answer of the model's own."""

    def __init__(self, llm: LLM, sends_reasoning: bool = True):
        self._llm, self._sends_reasoning, self.messages = llm, sends_reasoning, list[dict[str, Any]]()
        self.prompts, self.cached = (
            list[int](),
            list[int](),
        )  # of each turn: tokens in its prompt, and how many were found
        self.ends = list[int]()  # how many tokens prompt and answer have
        llm.engine.flush_cache()

    def turn(self, message: dict[str, Any], call: str) -> None:
        """Send a message; the answer is `THOUGHT` and then a call, or another text."""
        assert self._llm.tokenizer is not None
        self.messages.append(message)
        prompt = self._llm.tokenizer.encode_chat(self.messages, {"tools": TOOLS})
        answer = self._llm.tokenizer.encode(f"<think>\n{THOUGHT.strip()}\n</think>\n\n{call}<|im_end|>", False)
        (output,) = self._llm.generate([[*prompt, *answer]], {"max_new_tokens": 1, "temperature": 0}, use_tqdm=False)
        self.prompts.append(len(prompt))
        self.cached.append(min(output.cached_tokens, len(prompt)))
        self.ends.append(len(prompt) + len(answer))
        self.messages.append({"role": "assistant", "content": call})
        if self._sends_reasoning:
            self.messages[-1]["reasoning_content"] = THOUGHT.strip()


def loop(llm: LLM, **options: Any) -> Agent:
    """A question, some rounds of calls, an answer, and the next question."""
    agent = Agent(llm, **options)
    agent.turn({"role": "user", "content": "Where is it warm?"}, CALL)
    for _ in range(ROUNDS):
        agent.turn({"role": "tool", "content": RESULT.strip()}, CALL)
    agent.turn({"role": "user", "content": "And where does it rain?"}, "Nowhere.")
    return agent


def test_in_a_tool_loop_all_is_found_and_the_next_question_loses_all_after_the_first(qwen: LLM) -> None:
    agent = loop(qwen)
    assert agent.cached[1:-1] == agent.ends[:-2], "each round finds the one before, with its answer"
    first = agent.prompts[0]  # up to where the first answer begins
    assert agent.cached[-1] == first
    question = "<|im_start|>user\nAnd where does it rain?<|im_end|>\n<|im_start|>assistant\n"
    new = len(qwen.tokenizer.encode(question, False))  # type: ignore[union-attr]
    again = agent.prompts[-1] - first - new
    assert (first, again, new) == (120, 237, 14), (
        "237 tokens are computed again: calls and results, without the reasoning"
    )


def test_a_client_that_sends_no_reasoning_loses_each_rounds_call(qwen: LLM) -> None:
    agent = loop(qwen, sends_reasoning=False)
    assert agent.cached[1:-1] == agent.prompts[:-2], "up to where the last answer began"
    call = len(qwen.tokenizer.encode(f"{CALL}<|im_end|>\n", False))  # type: ignore[union-attr]
    for before, prompt in zip(agent.prompts[:-2], agent.prompts[1:-1], strict=True):
        assert prompt - before > call
    assert agent.cached[-1] == agent.prompts[-2], "nothing is left that the next question could drop"
