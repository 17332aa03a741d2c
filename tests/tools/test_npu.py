"""Ascend NPUs: messages where something is missing, which operator runs, and, on an NPU, that numbers equal the CPU's."""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nanoinfer import LLM, SamplingParams
from nanoinfer.ascend.advance_step import npu_advance_step_flashattn
from nanoinfer.ascend.generator import GeneratorTorch
from nanoinfer.device import import_torch_npu, on_stream, resolve_device
from tests.helpers.advance_step import example, lists, loop, speculative_example
from tests.helpers.paged import Caller


def test_without_torch_npu_it_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(ImportError, match="torch_npu is not installed"):
        import_torch_npu()
    with pytest.raises(ValueError, match="torch_npu is not installed"):
        LLM("story", device="npu")


def test_without_a_device_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", SimpleNamespace(is_available=lambda: False), raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))
    with pytest.raises(ValueError, match="device='npu': torch_npu finds no NPU"):
        resolve_device("npu")


# --- the operator ------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """torch_npu with an operator that computes what CANN's kernels do; the list is of the arguments it was called with."""
    made: list[dict[str, Any]] = []
    names = list(inspect.signature(npu_advance_step_flashattn).parameters)

    def operator(*args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        made.append(arguments)
        on_device = {name: as_the_kernel_reads(value) for name, value in arguments.items()}
        new = loop(lists(on_device), "by_row" if kwargs else "kernel")
        for name, values in new.items():
            on_device[name].copy_(torch.tensor(values).int())  # the speculative kernel computes in int32

    module = ModuleType("torch_npu")
    module.npu_advance_step_flashattn = operator  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return made


def as_the_kernel_reads(value: Any) -> Any:
    """A tensor as one that is contiguous from its first element on, whatever its strides."""
    if not isinstance(value, torch.Tensor):
        return value
    strides = [int(np.prod(value.shape[i + 1 :])) for i in range(value.dim())]
    return value.as_strided(value.shape, strides)


def on_an_npu(*args: object, **kwargs: object) -> None:
    """The operator, as it is dispatched for tensors on an NPU, over tensors that are not."""
    npu = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)  # of torch; there is no public name for it
    torch.ops.nanoinfer.npu_advance_step_flashattn.default.redispatch(npu, *args, **kwargs)


def run_on_an_npu(arguments: dict[str, Any], formula: str = "by_row") -> None:
    """The operator on an NPU, and that it does what the plain loop does."""
    before = lists(arguments)
    names = list(inspect.signature(npu_advance_step_flashattn).parameters)
    positional = [arguments[name] for name in names[:9]]
    on_an_npu(*positional, **{name: arguments.get(name) for name in names[9:11]}, formula=formula)
    assert lists(arguments) == {**before, **loop(before, formula)}


def test_on_an_npu_slots_are_by_row_whatever_the_devices_operator_computes(calls: list[dict[str, Any]]) -> None:
    padded = example()
    run_on_an_npu(padded)
    assert padded["slot_mapping"].tolist() == [23, 28, -1, -1]
    whole = example(num_queries=4, sampled_token_ids=[[7], [8], [9], [6]], seq_lens=[3, 4, 0, 7])
    run_on_an_npu(whole)
    assert whole["slot_mapping"].tolist() == [23, 28, 8, 39]
    by_kernel = example()
    run_on_an_npu(by_kernel, "kernel")
    assert by_kernel["slot_mapping"].tolist() == [23, 16, -1, -1]
    assert calls == []


def test_on_an_npu_torch_npus_operator_runs_the_speculative_form(calls: list[dict[str, Any]]) -> None:
    for arguments in (speculative_example(), speculative_example(accepted_num=[4, 0])):
        run_on_an_npu(arguments)
        assert len(calls) == 1
        call = calls.pop()
        assert call.keys() == arguments.keys()
        assert all(call[name] is arguments[name] for name in arguments)


def test_on_an_npu_plain_torch_runs_what_the_speculative_operator_cannot(calls: list[dict[str, Any]]) -> None:
    beyond_int32 = speculative_example(block_tables=[[5, 2, 6], [1, 7, 2**30]])
    run_on_an_npu(beyond_int32)
    assert beyond_int32["slot_mapping"].tolist() == [9, 10, 11, 31, 2**32, 2**32 + 1]
    for name in ("input_positions", "block_tables", "sampled_token_ids", "accepted_num"):
        tensor = speculative_example()[name]
        strided = torch.stack((tensor, torch.zeros_like(tensor)), dim=-1)[..., 0]
        run_on_an_npu({**speculative_example(), name: strided})
    assert calls == []


def test_on_an_npu_the_same_is_refused(calls: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="block_tables: 2 blocks per row"):
        run_on_an_npu(example(seq_lens=[3, 8, 0, 0]))
    with pytest.raises(ValueError, match="accepted_num: -1 in row 0"):
        run_on_an_npu(speculative_example(accepted_num=[-1, 0]))
    assert calls == []


def test_a_stream_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(torch, "npu", SimpleNamespace(stream=lambda stream: used.append(stream)), raising=False)
    on_stream(SimpleNamespace(type="npu"), "a stream")  # type: ignore[arg-type]
    on_stream(SimpleNamespace(type="npu"), None)  # type: ignore[arg-type]
    on_stream(torch.device("cpu"), "a stream")
    assert used == ["a stream"]


# --- on an NPU ---------------------------------------------------------------------------------------------------


@pytest.mark.npu
@pytest.mark.parametrize("make", [example, speculative_example])
def test_the_devices_operator_does_what_plain_torch_does(make) -> None:
    on_cpu, on_npu = make(), make()
    npu_advance_step_flashattn(**on_cpu)
    on_npu = {name: v.to("npu") if isinstance(v, torch.Tensor) else v for name, v in on_npu.items()}
    npu_advance_step_flashattn(**on_npu)
    assert lists(on_npu) == lists(on_cpu)


@pytest.mark.npu
def test_forward_tensor_on_an_npu_is_that_on_the_cpu() -> None:
    logits = []
    for device in ("cpu", "npu"):
        caller = Caller(GeneratorTorch("story", device=device), 8, 16)
        caller.prefill({0: [5, 6, 7], 1: list(range(20))})
        logits.append(caller.decode({0: [9], 1: [8]}).cpu())
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)


@pytest.mark.npu
def test_an_engine_on_an_npu_has_the_tokens_of_the_cpu() -> None:
    params = SamplingParams(max_new_tokens=16, temperature=0)
    texts = [LLM("story", device=device).generate("Once upon a time", params)[0].text for device in ("cpu", "npu")]
    assert texts[0] == texts[1]
