"""vLLM's and SGLang's routes: /generate, tokens, adapters, metrics, the cache; and the OpenAPI description."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nanoinfer import LLM, SamplingParams
from nanoinfer.model.lora.manager import bundled_adapter
from tests.helpers.engines import make_engine
from tests.helpers.servers import Running, ask, patient_app, sent_events
from tests.server.conftest import greedy

PROMPT = "Once upon a time"


# --- /generate ----------------------------------------------------------------------------------------------------


def test_generate_answers_in_sglangs_form(server: Running, reference: LLM) -> None:
    (wanted,) = reference.generate(PROMPT, greedy(6))
    params = {"max_new_tokens": 6, "temperature": 0}
    made = server.post("/generate", {"text": PROMPT, "sampling_params": params, "rid": "mine"}).json()
    assert (made["text"], made["output_ids"]) == (wanted.text, wanted.token_ids)
    meta = made["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 5, 6)
    by_ids = server.post("/generate", {"input_ids": wanted.prompt_token_ids, "sampling_params": params}).json()
    assert by_ids["text"] == wanted.text


def test_generate_takes_lists_n_and_sglangs_names(server: Running, reference: LLM) -> None:
    params = {"max_new_tokens": 5, "n": 2, "sampling_seed": 3, "no_stop_trim": True, "stop": ["xyz"]}
    made = server.post("/generate", {"text": [PROMPT, "The fox"], "sampling_params": params}).json()
    wanted = reference.generate([PROMPT, "The fox"], SamplingParams(max_new_tokens=5, n=2, seed=3), use_tqdm=False)
    assert [one["text"] for one in made] == [one.text for output in wanted for one in output.outputs]
    greedy_twice = server.post("/generate", {"text": PROMPT, "sampling_params": {"n": 2, "temperature": 0}}).json()
    assert len(greedy_twice) == 2
    assert greedy_twice[0]["text"] == greedy_twice[1]["text"]


def test_a_stream_of_generate_repeats_the_text_so_far(server: Running, reference: LLM) -> None:
    (wanted,) = reference.generate(PROMPT, greedy(6, logprobs=2))
    body = {
        "text": PROMPT,
        "sampling_params": {"max_new_tokens": 6, "temperature": 0},
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    made = sent_events(server.post("/generate", body).text)
    assert all(wanted.text.startswith(one["text"]) for one in made)
    assert made[-1]["text"] == wanted.text
    assert made[-1]["meta_info"]["finish_reason"]["type"] == "length"
    logprobs = made[-1]["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in logprobs] == wanted.token_ids
    assert [one[0] for one in logprobs] == pytest.approx(
        [entry[t] for entry, t in zip(wanted.logprobs or [], wanted.token_ids, strict=True)]
    )
    assert all(len(top) == 2 for top in made[-1]["meta_info"]["output_top_logprobs"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"logits_processors": ["x"]}}, "sampling_params.logits_processors"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 10**9}}, "max_new_tokens"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "sampling_params": {"return_logprob": True}}, "sampling_params.return_logprob"),
    ],
)
def test_a_wrong_generate(server: Running, body: dict[str, Any], param: str) -> None:
    answer = server.post("/generate", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param, answer.text


# --- tokens -------------------------------------------------------------------------------------------------------


def test_tokens_and_back(server: Running, reference: LLM) -> None:
    made = server.post("/tokenize", {"prompt": PROMPT, "model": "story", "return_token_strs": True}).json()
    assert made["tokens"] == reference.tokenizer.encode(PROMPT)
    assert (made["count"], made["max_model_len"]) == (5, 1024)
    assert made["token_strs"] == ["<s>", "Once", " upon", " a", " time"]
    plain = server.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False}).json()["tokens"]
    assert plain == made["tokens"][1:]
    assert server.post("/detokenize", {"tokens": plain}).json() == {"prompt": PROMPT}


def test_the_tokens_of_a_conversation(server: Running, reference: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    made = server.post("/tokenize", {"messages": messages}).json()
    assert made["tokens"] == reference.chat_prompt(messages)
    without = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert without["count"] == made["count"] - 1


def test_texts_and_tokens_are_bounded_as_prompts_are(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*args: Any) -> None:
        raise AssertionError("the tokenizer was used for what no request could have")

    monkeypatch.setattr(server.service.tokenizer, "encode", used)
    monkeypatch.setattr(server.service.tokenizer, "decode", used)
    most = server.service.tokenizer.max_chars_per_token
    assert most is not None
    for path, body in (("/tokenize", {"prompt": "x" * (1024 * most + 1)}), ("/detokenize", {"tokens": [5] * 1025})):
        answer = server.post(path, body)
        assert answer.status_code == 400, answer.text


# --- adapters -----------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter_server(tmp_path: Path) -> Any:
    """An application without sockets, with adapters below a root, beside it, and a link that leads out."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copytree(str(bundled_adapter("sea")), root / "sea")
    shutil.copytree(str(bundled_adapter("rhymes")), tmp_path / "beside")
    (root / "link").symlink_to(tmp_path / "beside")
    (root / "empty").mkdir()
    for name, content in (("broken", "{"), ("damaged", "{}")):
        (root / name).mkdir()
        (root / name / "adapter_config.json").write_text(content)
        (root / name / "adapter_model.safetensors").write_text("no tensors")
    return patient_app(LLM("story", max_total_tokens=1024), adapter_root=root)


def test_an_adapter_is_loaded_used_and_unloaded(adapter_server: Any) -> None:
    def post(path: str, **body: Any) -> Any:
        return ask(adapter_server, "POST", path, json=body)

    body = {"model": "waves", "prompt": PROMPT, "temperature": 0, "max_tokens": 2}
    assert post("/v1/completions", **body).status_code == 404
    assert "Success" in post("/v1/load_lora_adapter", lora_name="waves", lora_path="sea").text
    assert post("/v1/completions", **body).status_code == 200
    assert [model["id"] for model in ask(adapter_server, "GET", "/v1/models").json()["data"]] == ["story", "waves"]
    assert post("/v1/load_lora_adapter", lora_name="waves", lora_path="sea").status_code == 400
    assert "Success" in post("/v1/unload_lora_adapter", lora_name="waves").text
    assert post("/v1/unload_lora_adapter", lora_name="waves").status_code == 404
    assert post("/v1/completions", **body).status_code == 404


@pytest.mark.parametrize(
    "path", ["../beside", "../nothing", "link", "/etc", "/no/such/folder", ".", "", "sea/../../beside"]
)
def test_what_is_outside_the_root_is_refused_alike_whether_it_is_there_or_not(adapter_server: Any, path: str) -> None:
    answer = ask(adapter_server, "POST", "/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": path})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (403, "outside_adapter_root")
    assert "beside" not in answer.text
    assert ask(adapter_server, "GET", "/v1/models").json()["data"][1:] == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("story", "sea"),
        ("base", "sea"),
        ("", "sea"),
        *(("x", path) for path in ("nothing", "empty", "broken", "damaged")),
    ],
)
def test_adapters_that_cannot_be_loaded(adapter_server: Any, tmp_path: Path, name: str, path: str) -> None:
    answer = ask(adapter_server, "POST", "/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
    assert answer.status_code == 400, answer.text
    assert tmp_path.name not in answer.text, "where the root is concerns nobody"


def test_without_a_root_nothing_is_loaded_or_unloaded() -> None:
    app = patient_app(make_engine())
    for path, body in (
        ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "sea"}),
        ("/v1/unload_lora_adapter", {"lora_name": "x"}),
    ):
        answer = ask(app, "POST", path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_adapter_root")


# --- metrics, cache, version, description -------------------------------------------------------------------------


def test_metrics_are_vllms_and_add_up() -> None:
    app = patient_app(make_engine(rows=2), served_model_name="letters")
    for stream in (False, True):
        body = {"model": "letters", "prompt": "abc", "max_tokens": 4, "temperature": 0, "stream": stream}
        assert ask(app, "POST", "/v1/completions", json=body).status_code == 200
    assert ask(app, "POST", "/v1/completions", json={}).status_code == 400
    answer = ask(app, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (
            sample.name,
            *(value for key, value in sorted(sample.labels.items()) if key not in ("model_name", "le")),
        ): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("model_name") == "letters" and sample.labels.get("le", "+Inf") == "+Inf"
    }
    expected = {
        ("vllm:num_requests_running",): 0,
        ("vllm:prompt_tokens_total",): 6,
        ("vllm:generation_tokens_total",): 8,
        ("vllm:prefix_cache_queries_total",): 6,
        ("vllm:prefix_cache_hits_total",): 2,
        ("vllm:request_success_total", "length"): 2,
        ("vllm:time_to_first_token_seconds_count",): 2,
        ("vllm:e2e_request_latency_seconds_bucket",): 2,
        ("vllm:request_generation_tokens_sum",): 8,
        ("nanoinfer:requests_aborted_total", "disconnect"): 0,
        ("nanoinfer:http_responses_total", "200"): 2,
        ("nanoinfer:http_responses_total", "400"): 1,
        ("nanoinfer:slots", "tree_evictable"): 6,
        ("nanoinfer:slots", "free"): 250,
        ("nanoinfer:tree_tokens",): 6,
    }
    assert {key: samples.get(key) for key in expected} == expected
    assert samples["vllm:inter_token_latency_seconds_count",] <= 6, "pieces that are read together have no gaps"


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_the_cache_can_be_emptied(path: str) -> None:
    app = patient_app(make_engine())
    body = {"model": "nanoinfer", "prompt": "abc", "max_tokens": 4, "temperature": 0}
    ask(app, "POST", "/v1/completions", json=body)
    assert ask(app, "POST", path).json() == {"success": True, "freed_tokens": 6}
    assert app.state.service.core.stats().free_slots == 256
    assert ask(app, "GET", path).status_code == 405, "a link on a page must not empty it"


def test_a_model_without_a_tokenizer_serves_token_ids() -> None:
    engine = make_engine()
    engine.builder.tokenizer = None
    app = patient_app(engine)
    body = {"model": "nanoinfer", "max_tokens": 2, "temperature": 0}
    answer = ask(app, "POST", "/v1/completions", json={**body, "prompt": [5], "return_token_ids": True, "logprobs": 1})
    assert answer.json()["choices"][0]["token_ids"] == [6, 7]
    assert answer.json()["choices"][0]["logprobs"]["tokens"] == ["6", "7"]
    for path, more in (
        ("/v1/completions", {"prompt": "text"}),
        ("/v1/completions", {"prompt": [5], "echo": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = ask(app, "POST", path, json={**body, **more})
        assert answer.status_code == 400, answer.text
