"""What `generate`, `chat`, `stream` and `add_request` say about keywords that they do not have."""

from collections.abc import Callable
from dataclasses import fields

from nanoinfer.requests.aliases import SAMPLING_ALIASES, SAMPLING_ELSEWHERE
from nanoinfer.requests.keywords import Alias, Elsewhere, F, keywords
from nanoinfer.requests.sampling_params import SamplingParams
from nanoinfer.requests.translations import lora_request


def _ours(name: str) -> str:
    ours = SAMPLING_ALIASES.get(name, name)
    return ours if isinstance(ours, str) else name


IN_PARAMS = {
    name: Elsewhere(f"belongs in SamplingParams: use params=SamplingParams({_ours(name)}=...)")
    for name in (*(field.name for field in fields(SamplingParams)), *SAMPLING_ALIASES)
}
CALL_ALIASES: dict[str, Alias] = {"sampling_params": "params", "lora_request": lora_request, "lora_path": "adapter"}
_IN_TEMPLATE = "use chat_template_kwargs={{'{}': ...}}"
CALL_ELSEWHERE = IN_PARAMS | {
    **SAMPLING_ELSEWHERE,
    "request_id": Elsewhere(
        "requests are numbered by the engine; read request_id of a stream or of an output", (None,)
    ),
    "priority": Elsewhere("requests have no priorities; schedule_policy orders the queue", (None, 0)),
    "tools": Elsewhere(_IN_TEMPLATE.format("tools"), (None,)),
    "documents": Elsewhere(_IN_TEMPLATE.format("documents"), (None,)),
    "chat_template": Elsewhere(_IN_TEMPLATE.format("chat_template"), (None,)),
    "add_generation_prompt": Elsewhere(_IN_TEMPLATE.format("add_generation_prompt"), (True,)),
    "continue_final_message": Elsewhere(_IN_TEMPLATE.format("continue_final_message"), (False,)),
    "enable_thinking": Elsewhere(_IN_TEMPLATE.format("enable_thinking")),
    "chat_template_content_format": Elsewhere("content is text or a list of text parts", ("auto", "string")),
}


def request_keywords(last: str | None = None, **aliases: str) -> Callable[[F], F]:
    """`keywords` for a method that takes a request. `aliases`: more than CALL_ALIASES."""
    return keywords({**CALL_ALIASES, **aliases}, CALL_ELSEWHERE, last=last)
