"""What clients send, field by field, as their own code builds it: it is served unchanged."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import jinja2
import openai
import pytest
from pydantic import BaseModel

from nanoinfer import LLM
from tests.helpers.scripted_checkpoint import make
from tests.helpers.servers import Running, ask, patient_app, sent_events

ROOT = Path(__file__).parent.parent.parent
ADDRESS = "http://127.0.0.1:8000"
HI = {"role": "user", "content": "Hi"}


class Animal(BaseModel):
    kind: Literal["fox", "owl"]
    legs: Literal[2, 4]


def chat(server: Running, **fields: Any) -> dict[str, Any]:
    answer = server.post("/v1/chat/completions", {"model": "story", "messages": [HI], "max_tokens": 40, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


def streamed(server: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.post(path, {"model": "story", **body})
    assert answer.status_code == 200, answer.text
    return sent_events(answer.text)


def test_a_loop_of_openais_parse_hands_its_own_answers_back(client: openai.OpenAI) -> None:
    messages: list[Any] = [HI]
    for _ in range(3):
        answer = client.chat.completions.parse(model="story", messages=messages, response_format=Animal, seed=1)
        message = answer.choices[0].message
        assert isinstance(message.parsed, Animal)
        messages += [message, {"role": "user", "content": "Another one"}]
    assert {"parsed", "refusal"} <= type(message).model_fields.keys()  # what such a message has besides


def test_calls_of_openais_parse_have_their_arguments_twice(server: Running) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", "parsed_arguments": {"a": 1}}}
    said = {"role": "assistant", "content": "", "parsed": None, "refusal": None, "tool_calls": [call]}
    chat(server, messages=[HI, said, HI])


def test_a_history_of_gradio(server: Running) -> None:
    said = {"metadata": {"title": "Thought", "status": "done", "id": 1}, "options": [{"value": "yes", "label": None}]}
    parts = [{"type": "text", "text": "Hi"}]
    history = [
        {"role": "user", "metadata": None, "content": parts, "options": None},
        {"role": "assistant", "content": parts, **said},
    ]
    assert chat(server, messages=[*history, HI], temperature=0) == chat(
        server, messages=[HI, {"role": "assistant", "content": "Hi"}, HI], temperature=0
    )


# llguidance's header, a rule that is captured, and options of the JSON's form are what guidance adds to each grammar.
ANIMAL = Animal.model_json_schema() | {"additionalProperties": False}
OPTIONS = {"whitespace_flexible": False, "whitespace_pattern": None, "item_separator": ", ", "key_separator": ": "}
GUIDANCE = [
    ("start: START\nSTART: /[a-z]{2}\\/\\d{2}/\n", r"[a-z]{2}/\d{2}"),
    ('start: y\ny[capture]: Y\n\nY: "yes"\n     | "no"\n\n', "yes|no"),
    ('start: x\nx[capture, max_tokens=3, stop="."]: X\nX: /(?s:.*)/\n', r"[^.]*"),
    (
        'start: "<" j ">"\n\nj[capture]: %json '
        + json.dumps({**ANIMAL, "x-guidance": {**OPTIONS, "coerce_one_of": True, "lenient": False}}, indent=2)
        + "\n\n",
        r'<\{"kind": "(fox|owl)", "legs": [24]\}>',
    ),
]


@pytest.mark.parametrize("names", [("guided_grammar", "structured_outputs"), ("ebnf",)], ids=["vllm", "sglang"])
@pytest.mark.parametrize(("rules", "regex"), GUIDANCE)
def test_a_grammar_of_guidance(server: Running, names: tuple[str, ...], rules: str, regex: str) -> None:
    grammar = "%llguidance {}\n\n" + rules
    fields: dict[str, Any] = dict.fromkeys(names, grammar)
    if "structured_outputs" in fields:
        fields |= {"structured_outputs": {"grammar": grammar}, "guided_decoding_backend": "guidance"}
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    more = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 5}
    unset = {"tools": None, "top_p": None}
    chunks = streamed(
        server, "/v1/chat/completions", {"messages": [parts], "max_tokens": 40, **fields, **more, **unset}
    )
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert re.fullmatch(regex, text, re.DOTALL), text
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_the_token_that_ends_a_text_is_no_token_of_a_delta_with_text(tmp_path: Path) -> None:
    """Guidance shows the tokens of such a delta as text. Here the stop text holds back a word until the end."""
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    app = patient_app(LLM(str(make(tmp_path / "scripted", ["Once", " upon"], template)), max_total_tokens=256))
    body = {"messages": [HI], "temperature": 0, "stop": "upon a", "logprobs": True, "stream": True}
    answer = ask(app, "POST", "/v1/chat/completions", json={"model": app.state.service.base_name, **body})
    choices = [event["choices"][0] for event in sent_events(answer.text)]
    tokens = [[entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]] for choice in choices]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Once upon"
    assert [token for part in tokens for token in part] == ["Once", " upon", "<|im_end|>"]
    assert (choices[-1]["delta"], tokens[-1]) == ({}, ["<|im_end|>"])


def test_a_benchmark_of_guidellm(server: Running) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    exact = {"stop": None, "ignore_eos": True}
    for path, body in (
        ("/v1/completions", {"prompt": "Once", "max_tokens": 7}),
        ("/v1/chat/completions", {"messages": [HI], "max_completion_tokens": 7}),
    ):
        assert streamed(server, path, {**body, **options, **exact})[-1]["usage"]["completion_tokens"] == 7


def test_the_remote_tokenizer_of_lm_eval(server: Running, reference: LLM) -> None:
    """It asks whether `eos_token` is there, looks its special tokens up by their text, and renders the template itself."""
    info = server.get("/tokenizer_info", headers={"content-type": "application/json"}).json()
    ours = reference.engine.builder.tokenizer.hf_tokenizer  # type: ignore[union-attr]
    for name in ("eos_token", "bos_token", "pad_token"):
        assert info[name] == getattr(ours, name)
        found = server.post("/tokenize", {"prompt": info[name], "add_special_tokens": False}).json()["tokens"]
        assert found == [getattr(ours, f"{name}_id")]
    tokens = server.post("/tokenize", {"prompt": "Once upon", "add_special_tokens": False}).json()["tokens"]
    assert tokens == ours.encode("Once upon", add_special_tokens=False)
    assert server.post("/detokenize", {"tokens": tokens}).json()["prompt"] == "Once upon"
    with_end = {"tokens": [*tokens, ours.eos_token_id]}
    assert server.post("/detokenize", with_end).json()["prompt"].endswith(info["eos_token"])
    assert server.post("/detokenize", {**with_end, "skip_special_tokens": True}).json()["prompt"] == "Once upon"
    template = jinja2.Environment().from_string(info["chat_template"])
    text = template.render(
        messages=[HI], add_generation_prompt=True, **{n: info[n] for n in ("bos_token", "eos_token")}
    )
    assert text == ours.apply_chat_template([HI], tokenize=False, add_generation_prompt=True)


def test_a_log_likelihood_of_lm_eval(server: Running) -> None:
    body = {"model": "story", "prompt": [[5, 6, 7], [8, 9]], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    answer = server.post("/v1/completions", {**body, "seed": 1234, "echo": True})
    assert answer.status_code == 200, answer.text
    for choice, length in zip(answer.json()["choices"], (3, 2), strict=True):
        found, likeliest = (choice["logprobs"][name][1:-1] for name in ("token_logprobs", "top_logprobs"))
        assert len(found) == len(likeliest) == length - 1
        assert all(one <= max(top.values()) for one, top in zip(found, likeliest, strict=True))


def test_sglangs_frontend_asks_for_the_model_and_says_how_special_tokens_are_shown(server: Running) -> None:
    for path in ("/get_model_info", "/model_info"):
        info = server.get(path).json()
        assert (info["model_path"], info["tokenizer_path"], info["is_generation"]) == ("story", "story", True)
    params = {
        "max_new_tokens": 8,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "regex": "[ab]{3}",
    }
    body = {"text": "Once", "sampling_params": params, "return_routed_experts": False, "logprob_start_len": -1}
    answer = server.post("/generate", body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["text"]) == 3


def test_the_client_prints_a_text(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "notebooks" / "handbook" / "server.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert ADDRESS in code
    exec(compile(code.replace(ADDRESS, server.url), "the client", "exec"), {})
    assert len(capsys.readouterr().out) > 20


def test_the_body_that_curl_sends_is_answered(server: Running) -> None:
    (path, body) = re.findall(rf"curl {ADDRESS}(\S+) -H .* -d '(.*)'", (ROOT / "README.md").read_text())[0]
    answer = server.post(path, json.loads(body))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"]
