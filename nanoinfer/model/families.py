"""Model families: which network class serves an architecture.

A family is a network class that also says which checkpoints it takes, with `model_type` and `read_config` (see
LlamaForCausalLM). To add one, write a file and add one line below. Outside the package, register the class itself:

    class MyForCausalLM(LlamaForCausalLM):
        model_type = "my"

        @classmethod
        def read_config(cls, hf):
            return replace(super().read_config(hf), attention_scale=1 / hf.head_dim, logit_scale=0.5)

    MODEL_FAMILIES["MyForCausalLM"] = MyForCausalLM

ModelConfig's fields show what can differ, and a subclass may have more of them. Layers that are put together differently,
or that have another MLP (see DecoderLayer's `new_mlp`), are the family's `layer_class`. Its modules are named as in the
checkpoint (or see `checkpoint_name`), and their products are those of Linear, which loads, quantizes and adapts them.
Anything else that a family does to its logits belongs in `lm_head`, so that prompt log-probabilities see it, too.
"""

from importlib import import_module
from typing import Any

from nanoinfer.errors import UnsupportedModelError
from nanoinfer.registry import MODEL_FAMILIES

# An architecture, as `architectures` in config.json names it, and the module with the class of that name. The module is
# imported when a checkpoint needs it.
MODEL_FAMILIES.update(
    LlamaForCausalLM="nanoinfer.model.llama",
    MistralForCausalLM="nanoinfer.model.mistral",
    Qwen2ForCausalLM="nanoinfer.model.qwen",
    Qwen3ForCausalLM="nanoinfer.model.qwen",
    Gemma3ForCausalLM="nanoinfer.model.gemma3",
    Phi3ForCausalLM="nanoinfer.model.phi3",
    Qwen3MoeForCausalLM="nanoinfer.model.qwen_moe",
    Qwen2MoeForCausalLM="nanoinfer.model.qwen_moe",
    OlmoeForCausalLM="nanoinfer.model.qwen_moe",
    MixtralForCausalLM="nanoinfer.model.qwen_moe",
)


def find_family(architecture: str) -> Any:
    """The class for `architecture`. If there is none, UnsupportedModelError lists the supported ones."""
    try:
        MODEL_FAMILIES.check(architecture)
    except ValueError:
        supported = ", ".join(map(str, MODEL_FAMILIES))
        raise UnsupportedModelError(f"architecture {architecture}: must be one of {supported}") from None
    family = MODEL_FAMILIES[architecture]
    if not isinstance(family, str):
        return family
    try:
        return getattr(import_module(family), architecture)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UnsupportedModelError(f"MODEL_FAMILIES[{architecture!r}]={family!r}: {error}") from error


def infer_architecture(model_type: Any) -> str:
    """The architecture for a config without `architectures`: that of the only family with this `model_type`. If there is
    no such family, or more than one, UnsupportedModelError lists the families."""
    types = {architecture: find_family(architecture).model_type for architecture in MODEL_FAMILIES}
    matching = [architecture for architecture in types if types[architecture] == model_type]
    if len(matching) == 1:
        return str(matching[0])
    families = ", ".join(f"{architecture} (model_type {types[architecture]})" for architecture in matching or types)
    raise UnsupportedModelError(
        f"architectures: missing from config.json, and model_type={model_type!r} does not say which of these it is: "
        f"{families}"
    )
