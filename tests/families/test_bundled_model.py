"""The bundled model: a plain Hugging Face checkpoint, small, whose chats reuse the cache. Its weights and texts may change:
nothing here depends on what it says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.loader import resolve_model_path

PATH = resolve_model_path("story")
HF_TOKENIZER = transformers.AutoTokenizer.from_pretrained(PATH)
PROMPTS = ["Once upon a time", "One day, a little dog", "Question: What is 12 + 7?", "1, 2, 3, 4,", "The", "Ünïcode 😀"]
QUESTIONS = ["Hello! Who are you?", "What is 3 + 4?", "Tell me a story about a cat."]
GREEDY = SamplingParams(max_new_tokens=48, temperature=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", max_running_requests=4)


@pytest.fixture(scope="module")
def hf_model() -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(PATH).eval()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@torch.no_grad()
def transformers_reply(model: transformers.PreTrainedModel, prompt_ids: list[int]) -> list[int]:
    ids = torch.tensor([prompt_ids])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False)
    return out[0, len(prompt_ids) :].tolist()


def test_it_loads_unchanged_in_transformers() -> None:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(PATH, output_loading_info=True)
    assert type(model) is transformers.LlamaForCausalLM
    assert not any(info.values()), info
    assert 3e6 <= model.num_parameters() <= 6e6
    config = model.config
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.max_position_embeddings >= 1024
    assert len(HF_TOKENIZER) <= config.vocab_size
    assert (config.bos_token_id, config.eos_token_id) == (HF_TOKENIZER.bos_token_id, HF_TOKENIZER.eos_token_id)


def test_greedy_text_is_that_of_transformers_up_to_the_end_token(llm: LLM, hf_model: transformers.LlamaModel) -> None:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        prompt_ids = HF_TOKENIZER(prompt)["input_ids"]
        wanted = transformers_reply(hf_model, prompt_ids)
        assert output.prompt_token_ids == prompt_ids
        assert output.token_ids == wanted
        assert output.text == HF_TOKENIZER.decode(wanted, skip_special_tokens=True)
        assert output.finish_reason == ("stop" if wanted[-1] == HF_TOKENIZER.eos_token_id else "length")


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_chat_of_two_turns_is_that_of_transformers_and_hits_the_cache(
    llm: LLM, hf_model: transformers.LlamaModel, question: str
) -> None:
    """The second turn's prompt begins with the first turn's prompt and reply, token for token: all of it that has K/V is
    reused."""
    llm.engine.flush_cache()
    messages = [user(question)]
    first = llm.chat(messages, GREEDY)[0]
    messages += [{"role": "assistant", "content": first.text}, user("And then?")]
    second = llm.chat(messages, GREEDY)[0]
    for turn, output in ((messages[:1], first), (messages, second)):
        prompt_ids = HF_TOKENIZER.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]
        wanted = transformers_reply(hf_model, prompt_ids)
        assert output.token_ids == wanted
        assert output.text == HF_TOKENIZER.decode(wanted, skip_special_tokens=True)
    so_far = first.prompt_token_ids + first.token_ids
    assert second.prompt_token_ids[: len(so_far)] == so_far
    assert first.cached_tokens == 0
    assert second.cached_tokens == len(so_far) - 1


@pytest.mark.slow
def test_neither_import_nor_the_bundled_model_touches_the_network() -> None:
    program = """
import socket

def refuse(*args, **kwargs):
    raise AssertionError("network")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from nanoinfer import LLM, SamplingParams
params = SamplingParams(max_new_tokens=2, ignore_eos=True)
print(len(LLM("story", max_total_tokens=64).generate("Once", params)[0].token_ids))
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]
