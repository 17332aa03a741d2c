"""Adapters on disk, with PEFT as the oracle: random settings select what they select in PEFT."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoinfer.model.lora.peft_files import EMBEDDINGS, AdapterConfig, read_adapter
from nanoinfer.model.lora.projections import projections
from tests.helpers.checkpoints import FAMILIES
from tests.helpers.peft_models import ENDS, adapt, check_equal, layers_of, network_of, refusal

Checkpoint = Callable[..., Path]
Oracle = Callable[[Path], transformers.PreTrainedModel]
pytestmark = pytest.mark.filterwarnings("ignore")  # PEFT warns of much that is asked for here on purpose


@st.composite
def configs(draw: st.DrawFn, ends: list[str]) -> dict[str, Any]:
    """Random settings; some target nothing, or what is no projection."""
    end, number = st.sampled_from(ends), st.integers(1, 9)
    paths = [
        f"{part}.{end}" for part in ("self_attn", "mlp", "model.layers.1.mlp", "layers.0.self_attn") for end in ends
    ]
    names = st.lists(end | st.sampled_from([*paths, "proj", "other"]), min_size=1, max_size=6)
    starts = ["", "", ".*", r"model\.layers\.\d\.", r".*\.[01]\..*", r"layers\.2\.(mlp|self_attn)\.", "[a-z_]*", "a|"]
    body = (
        end | st.tuples(end, end).map("|".join) | st.sampled_from(["[a-z]+_proj", "self_attn.*", "mlp", "(o|down).*"])
    )
    regex = st.builds("{}{}{}".format, st.sampled_from(starts), body, st.sampled_from(["", "", "", ".*", "|other"]))
    layer, pattern = (
        st.integers(-1, 4),
        st.sampled_from(["layers", "h", "l.*s", "model.layers", "layers|h", "h|layers", ""]),
    )
    config: dict[str, Any] = {
        "target_modules": draw(names | names | regex | st.just("all-linear")),
        "exclude_modules": draw(st.none() | names | regex),
        "r": draw(number),
        "lora_alpha": draw(number | st.floats(-10, 10)),
        "use_rslora": draw(st.booleans()),
        "rank_pattern": draw(st.dictionaries(regex, number, max_size=3)),
        "alpha_pattern": draw(st.dictionaries(regex, number | st.floats(0, 9), max_size=3)),
    }
    for field in ("rank_pattern", "alpha_pattern"):  # PEFT saves them in this order, and the first that matches counts
        config[field] = dict(sorted(config[field].items()))
    if isinstance(config["target_modules"], list):
        config["layers_to_transform"] = draw(st.none() | layer | st.lists(layer, max_size=3))
        if config["layers_to_transform"] is not None:
            config["layers_pattern"] = draw(st.none() | pattern | st.lists(pattern, max_size=2))
    return config


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_select_what_they_select_in_peft(
    family: str,
    checkpoint: Checkpoint,
    oracle: Oracle,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base, network = oracle(checkpoint(family)), network_of(checkpoint(family))

    @settings(max_examples=40 if family in ("llama", "phi3") else 8)  # the others have the names of Llama's projections
    @given(configs(ENDS[family]))
    def check(fields: dict[str, Any]) -> None:
        folder = tmp_path_factory.mktemp("adapter")
        (folder / "adapter_model.safetensors").touch()  # so that a refusal is about the config
        config = peft.LoraConfig(task_type="CAUSAL_LM", **fields)
        config.save_pretrained(folder)
        ours = AdapterConfig.parse((folder / "adapter_config.json").read_bytes())
        modules = {name for name, _ in base.named_modules() if name and ours.targets(name)}
        if fields["target_modules"] == "all-linear":
            modules &= projections(network).keys()
        if not modules or not modules <= {*projections(network), *EMBEDDINGS}:
            with pytest.raises(ValueError, match=r"odules|not supported"):  # PEFT finds none, or no linear ones
                adapt(base, **fields)
            return
        model = adapt(base, **fields)
        layers = layers_of(model)
        assert modules == layers.keys()
        if not modules.isdisjoint(EMBEDDINGS):
            assert "only projections" in refusal(folder, network)
            return
        for name, layer in layers.items():
            assert (ours.rank(name), ours.scale(name)) == (layer.r["default"], layer.scaling["default"])
        model.save_pretrained(folder)
        check_equal(model, read_adapter(folder, network))

    check()
