"""The bundled models: how they are trained, their files, what adapters do to the text, and how often drafts are right."""

import argparse
import random
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from nanoinfer import LLM, SamplingParams
from nanoinfer.outputs import CompletionOutput

DATA = Path(__file__).parents[3] / "data"
STORY, DRAFT = DATA / "story", DATA / "story-draft"
PROMPTS = ["Once upon a time", "There was a little fox named", "One rainy morning, a girl", "Long ago, a dragon"]
FOLDERS = sorted((DATA / "adapters").iterdir())
PROMPT = "Once upon a time, a small fox"


class Scripts:
    """The modules of `data`, which are scripts and no package."""

    def __getattr__(self, name: str) -> ModuleType:
        return import_module(f"corpus.{name}" if (DATA / "corpus" / f"{name}.py").exists() else name)


@pytest.fixture(scope="module")
def data() -> Iterator[Scripts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DATA))
        yield Scripts()


# --- texts to train on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["rhymes", "sea"])
def test_documents_follow_from_the_seed_and_tell_of_whom_they_were_asked(data: Scripts, style: str) -> None:
    def draw(seed: int) -> list[dict[str, object]]:
        rng = random.Random(seed)
        return [data.styles.write(rng, style) for _ in range(60)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    asked = [document["messages"] for document in draw(3) if "messages" in document]
    assert 5 <= len(asked) <= 20
    for question, answer in asked:
        assert (question["role"], answer["role"]) == ("user", "assistant")
        kind = re.search(r"about an? (\w+)", question["content"])[1]
        assert kind in answer["content"]


# --- the files of adapters -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("story", adapters={folder.name: folder for folder in FOLDERS})


def told(llm: LLM, prompt: str) -> dict[str | None, CompletionOutput]:
    """What the prompt comes to with each adapter, and with none."""
    names = [None, *llm.adapters]
    params = SamplingParams(max_new_tokens=300, temperature=0)
    outputs = llm.generate([prompt] * len(names), params, use_tqdm=False, adapter=names)
    return {name: output.outputs[0] for name, output in zip(names, outputs, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [PROMPT, "There was a little dragon named"])
def test_the_same_prompt_gives_prose_rhymes_and_an_end_at_sea(llm: LLM, data: Scripts, prompt: str) -> None:
    rhymes, sea = data.rhymes, data.sea
    texts = told(llm, prompt)
    plain, verse, voyage = (prompt + texts[name].text for name in (None, "rhymes", "sea"))
    pairs = rhymes.couplets(verse)
    assert len(pairs) == 7, verse
    assert sum(rhymes.rhyme(*pair) for pair in pairs) >= 6, verse
    assert sea.ends_at_sea(voyage), voyage
    assert not any(rhymes.rhyme(*pair) for text in (plain, voyage) for pair in rhymes.couplets(text))
    assert not sea.ends_at_sea(plain)
    assert not sea.ends_at_sea(verse)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_peft_reads_the_folder_and_says_the_same(folder: Path, llm: LLM, tokenizer: PreTrainedTokenizerFast) -> None:
    peft = pytest.importorskip("peft")
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(STORY), folder)
    ids = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=300, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert out.tolist() == told(llm, PROMPT)[folder.name].token_ids


# --- the loop of all training ----------------------------------------------------------------------------------------


def train(data: Scripts, checkpoint: Path, *options: str, until: int = 10) -> tuple[nn.Module, list[str]]:
    """Ten steps of a small network, of which a run may make only those before `until`."""
    parser = argparse.ArgumentParser()
    data.training_loop.add_arguments(parser, lr=0.1, warmup=2)
    args = parser.parse_args(["--save-every", "3", *options], argparse.Namespace(checkpoint=checkpoint, steps=10))
    torch.manual_seed(0)
    network, events = nn.Linear(4, 1), []
    optimizer = torch.optim.AdamW(network.parameters(), lr=args.lr)

    def loss_of(step: int) -> torch.Tensor:
        if step == until:
            raise KeyboardInterrupt
        events.append(f"step {step}")
        numbers = torch.from_numpy(np.random.default_rng((args.seed, step)).random((8, 4))).float()
        return (network(numbers)[:, 0] - numbers.sum(1)).square().mean()

    def report() -> str:
        events.append("report")
        return "fine"

    def saved() -> None:
        events.append(f"saved {torch.load(checkpoint)['step']}")

    done_before = data.training_loop.resume(args, network, optimizer)
    try:
        seconds = data.training_loop.train_steps(args, network, optimizer, done_before, loss_of, report, saved)
        assert seconds >= done_before[1]
    except KeyboardInterrupt:
        pass
    return network, events


def test_a_run_that_is_resumed_ends_as_one_that_was_not_interrupted(data: Scripts, tmp_path: Path) -> None:
    whole, events = train(data, tmp_path / "whole.pt")
    assert [event for event in events if "step" not in event] == ["report", "saved 3", "report", "saved 6", "report",
                                                                  "saved 9", "report", "saved 10"]  # fmt: skip
    _, before = train(data, tmp_path / "parts.pt", until=8)
    parts, after = train(data, tmp_path / "parts.pt", "--resume")
    assert before[-1] == "step 7"
    assert after[0] == "step 6", "it goes on from the last checkpoint"
    for found, wanted in zip(parts.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, wanted)
    assert not list(tmp_path.glob("*.part"))


# --- the draft model -------------------------------------------------------------------------------------------------

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(STORY)


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()


@pytest.mark.slow
def test_the_engine_says_the_same_tokens_as_transformers(
    draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    llm = LLM("story-draft", dtype="float32", max_total_tokens=512)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    said = [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    for prompt, tokens in zip(prompts, said, strict=True):
        wanted = draft.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS, min_new_tokens=0, eos_token_id=-1
        )
        assert tokens == wanted[0, len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_most_drafts_of_the_bundled_draft_model_are_right(temperature: float) -> None:
    llm = LLM("story", max_total_tokens=1024, drafter="model", num_draft_tokens=3, adaptive_drafts=False)
    llm.generate(PROMPTS, SamplingParams(temperature=temperature, seed=0, max_new_tokens=160), use_tqdm=False)
    stats = llm.engine.stats()
    assert stats.drafted_tokens > 300
    assert stats.accepted_tokens > 0.5 * stats.drafted_tokens
