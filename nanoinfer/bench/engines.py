"""The engines that can be measured: what they are called, and how their processes are started."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoinfer.bench.processes import Worker

PEERS = Path(__file__).parent / "peers"
PEER_NAMES = ("nanoinfer", "transformers", "vllm", "openvino", "llamacpp")
SPEC = re.compile(r"(?P<name>[^:=]+)(:(?P<options>\w+=[^,=]+(,\w+=[^,=]+)*))?(=(?P<program>.+))?")
CONVERTED = ("openvino", "llamacpp")  # they read a file that was converted from the checkpoint


@dataclass(frozen=True)
class EngineSpec:
    """An engine to measure: `file` defines its Peer, `python` runs it, `options` are the Peer's keyword arguments.

    `is_ours`: whether it is nanoinfer itself (with any options) rather than an engine to compare it with.
    """

    name: str
    file: Path
    python: str = sys.executable
    options: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False

    @property
    def weights(self) -> str | None:
        """The kind of its weights, `int8` or `int4`; None: as in the checkpoint. Engines of a kind share a table."""
        kind = self.options.get("quantization" if self.is_ours else "weights")
        return None if kind is None else str(kind)

    def with_options(self, **options: Any) -> "EngineSpec":
        """The same engine with more options; its own prevail."""
        return replace(self, options={**options, **self.options})

    def start(self, model: str, dtype: str, threads: int, timeout: float) -> Worker:
        """Its process, which has loaded the model. EngineFailure if it does not."""
        arguments = json.dumps({"model": model, "dtype": dtype, "threads": threads, **self.options})
        command = [self.python, str(PEERS / "worker.py"), str(self.file), arguments]
        return Worker(command, environment(self.python, threads, self.is_ours), timeout)


def environment(program: str, threads: int, is_ours: bool) -> dict[str, str]:
    """This process's environment, with the number of threads. Another program than this Python sees none of its packages
    except nanoinfer."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    env |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    inherited = env.pop("PYTHONPATH", None)
    paths = [str(Path(__file__).resolve().parent.parent.parent)] if is_ours else []
    if inherited and program == sys.executable:
        paths.append(inherited)
    return {**env, "PYTHONPATH": os.pathsep.join(paths)} if paths else env


def parse_all(compare: Sequence[str], parse: Callable[[str], Any]) -> list[Any]:
    """nanoinfer and what `--compare` names, each as `parse` reads it. ValueError naming what is wrong."""
    specs = [parse(text) for text in ("nanoinfer", *compare)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--compare {name}: given twice (nanoinfer itself is always measured)")
    return specs


def parse_engine(text: str) -> EngineSpec:
    """`NAME[:option=value,...][=PYTHON]`, such as `vllm`, `vllm=PATH/TO/python`, `nanoinfer:quantization=int8` or
    `llamacpp:weights=int8=PATH/TO/python`. NAME is a known engine or `path/to/peer.py`.

    The engine's name in tables is the text without PYTHON. ValueError names the part that is wrong.
    """
    name, options, python, label = split_spec(text, PEER_NAMES)
    file = Path(name).resolve() if name.endswith(".py") else PEERS / f"{name}.py"
    return EngineSpec(label, file, python or sys.executable, options, is_ours=name == "nanoinfer")


def split_spec(text: str, names: Sequence[str]) -> tuple[str, dict[str, Any], str | None, str]:
    """The name, the options, the program and the label of `NAME[:option=value,...][=PROGRAM]`, where NAME is one of `names`
    or a Python file. ValueError names the part that is wrong."""
    found = SPEC.fullmatch(text)
    if found is None:
        raise ValueError(f"--compare {text}: must be NAME[:option=value,...][=PROGRAM]")
    name, given, program = found["name"], found["options"] or "", found["program"]
    if name not in names and not (name.endswith(".py") and Path(name).is_file()):
        raise ValueError(f"--compare {text}: {name!r} must be one of {', '.join(names)}, or a Python file")
    if program is not None and not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise ValueError(f"--compare {text}: {program!r} must be an executable file")
    options = {key: _value(value) for key, value in (each.split("=") for each in given.split(",") if each)}
    label = f"{name}:{given}" if given else Path(name).stem
    return name, options, program and os.path.abspath(program), label


def _value(text: str) -> Any:
    """An option's value: numbers, true, false and null as in JSON; True, False and None as in Python; else a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)
