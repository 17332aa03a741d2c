"""The adapters of the bundled model: the text they are trained on, their files, and what they do to the model."""

import json
import random
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

DATA = Path(__file__).parents[3] / "data"
FOLDERS = sorted((DATA / "adapters").iterdir())
SIZE_LIMIT = 400 * 2**10
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


# --- text ------------------------------------------------------------------------------------------------------------


def test_every_couplet_that_the_grammar_can_write_rhymes(data: Scripts) -> None:
    verses, rhymes = data.verses, data.rhymes
    slots = [slot for plot in verses.PLOTS for stanza in plot.paragraphs for slot in stanza]
    written = [*(couplet for slot in slots for couplet in slot), *verses.ENDINGS]
    written += [f"{verses.LIVED[0]} {end.format(he=he)}" for end in verses.WHERE for he in ("she", "he")]
    assert len(written) > 60
    assert [couplet for couplet in written if not rhymes.rhyme(*couplet.split("\n"))] == []


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


# --- layers ----------------------------------------------------------------------------------------------------------


def test_low_rank_layers_add_what_their_product_says_and_the_base_stays(data: Scripts, tmp_path: Path) -> None:
    low_rank = data.low_rank
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(6, 4, bias=False), "norm": torch.nn.LayerNorm(6)})
    shape, x = low_rank.Shape(rank=2, alpha=6, modules=("q_proj",)), torch.randn(3, 6)
    before, weight = model["q_proj"](x), model["q_proj"].weight
    matrices = low_rank.attach(model, shape)
    assert {name: tuple(matrix.shape) for name, matrix in matrices.items()} == {
        "base_model.model.q_proj.lora_A.weight": (2, 6),
        "base_model.model.q_proj.lora_B.weight": (4, 2),
    }
    assert torch.equal(model["q_proj"](x), before), "B is zero"
    a, b = matrices.values()
    torch.nn.init.normal_(b)
    torch.testing.assert_close(model["q_proj"](x), x @ (weight + 3 * b @ a).T)
    model["q_proj"](x).sum().backward()
    assert [parameter is a or parameter is b for parameter in model.parameters() if parameter.requires_grad] == [
        True
    ] * 2
    assert weight.grad is None
    size = low_rank.save(matrices, shape, tmp_path / "made")
    assert size == sum(file.stat().st_size for file in (tmp_path / "made").iterdir())
    read = load_file(tmp_path / "made" / "adapter_model.safetensors")
    assert all(torch.equal(read[name], matrix) for name, matrix in matrices.items())
    assert json.loads((tmp_path / "made" / "adapter_config.json").read_text())["target_modules"] == ["q_proj"]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(DATA / "story")


def merge(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Another model: the base with the adapter of `folder` added to its weights."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(base.config.name_or_path)
    with torch.no_grad():
        for name, a in tensors.items():
            if name.endswith(".lora_A.weight"):
                b = tensors[name.replace("lora_A", "lora_B")]
                weight = model.get_parameter(name.removeprefix("base_model.model.").replace("lora_A.", ""))
                weight += config["lora_alpha"] / config["r"] * b @ a
    return model


def tell(model: PreTrainedModel, prompt: str = PROMPT) -> str:
    tokenizer = AutoTokenizer.from_pretrained(DATA / "story")
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=300, do_sample=False)
    return tokenizer.decode(out[0], skip_special_tokens=True)


def test_there_are_two_of_different_rank() -> None:
    ranks = {folder.name: json.loads((folder / "adapter_config.json").read_text())["r"] for folder in FOLDERS}
    assert sorted(ranks) == ["rhymes", "sea"]
    assert len(set(ranks.values())) == 2


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_files_hold_exactly_what_the_config_says(folder: Path, base: PreTrainedModel, data: Scripts) -> None:
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sum(file.stat().st_size for file in folder.iterdir()) <= SIZE_LIMIT
    config = json.loads((folder / "adapter_config.json").read_text())
    own = ("r", "lora_alpha", "target_modules")
    assert {key: value for key, value in config.items() if key not in own} == data.low_rank.CONFIG
    wanted = {}
    for name, weight in base.named_parameters():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in config["target_modules"]:
            out_features, in_features = weight.shape
            wanted[f"base_model.model.{module}.lora_A.weight"] = (config["r"], in_features)
            wanted[f"base_model.model.{module}.lora_B.weight"] = (out_features, config["r"])
    tensors = load_file(folder / "adapter_model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == wanted
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert all(tensor.any() for tensor in tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [PROMPT, "There was a little dragon named"])
def test_the_same_prompt_gives_prose_rhymes_and_an_end_at_sea(
    base: PreTrainedModel, data: Scripts, prompt: str
) -> None:
    rhymes, sea = data.rhymes, data.sea
    plain = tell(base, prompt)
    verse, voyage = (tell(merge(base, DATA / "adapters" / name), prompt) for name in ("rhymes", "sea"))
    pairs = rhymes.couplets(verse)
    assert len(pairs) == 7, verse
    assert sum(rhymes.rhyme(*pair) for pair in pairs) >= 6, verse
    assert sea.ends_at_sea(voyage), voyage
    assert not any(rhymes.rhyme(*pair) for text in (plain, voyage) for pair in rhymes.couplets(text))
    assert not sea.ends_at_sea(plain)
    assert not sea.ends_at_sea(verse)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_peft_reads_the_folder_and_says_the_same(folder: Path, base: PreTrainedModel) -> None:
    peft = pytest.importorskip("peft")
    expected = tell(merge(base, folder))
    fresh = AutoModelForCausalLM.from_pretrained(DATA / "story")
    assert tell(peft.PeftModel.from_pretrained(fresh, folder)) == expected
