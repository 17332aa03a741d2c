"""How long it takes from starting Python to the first token, with empty caches and with full ones.

Every engine runs the shortest program that answers a prompt with it, in a process of its own. The engines take turns.
"""

import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tqdm.auto import tqdm

from nanoinfer.bench.engines import EngineSpec
from nanoinfer.bench.markdown import table

MARK = "startup: "
STAGES = ("imported", "loaded", "first token")
# Per engine: the code of each stage. `model` is the checkpoint's folder.
PROGRAMS = {
    "nanoinfer": (
        "from nanoinfer import LLM, SamplingParams",
        "llm = LLM(model)",
        "llm.generate('x', SamplingParams(max_new_tokens=1))",
    ),
    "transformers": (
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)",
        "network.generate(**tokenizer('x', return_tensors='pt', return_token_type_ids=False), max_new_tokens=1)",
    ),
    "vllm": (
        "from vllm import LLM, SamplingParams",
        "llm = LLM(model)",
        "llm.generate('x', SamplingParams(max_tokens=1))",
    ),
}
CONDITIONS = ("cold", "warm")
# Where engines keep what they have compiled. Cold: an empty folder each time. Warm: the folder that an earlier run filled.
CACHES = ("NANOINFER_CACHE", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True)
class Start:
    """One start: seconds from starting the process to the end of each stage; `error` if it did not get there."""

    engine: str
    condition: str
    round: int
    seconds: Mapping[str, float]
    error: str | None = None


def measure_startup(
    path: Path,
    engines: Sequence[EngineSpec],
    threads: int,
    rounds: int = 5,
    timeout: float = 600.0,
    programs: Mapping[str, Sequence[str]] = PROGRAMS,
) -> list[Start]:
    """Start every engine `rounds` times in each condition, after one start that fills its cache and is not counted.

    ValueError naming an engine without a program, or an argument that is out of range.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: must be at least 1")
    for spec in engines:
        if spec.file.stem not in programs or spec.options:
            raise ValueError(f"{spec.name}: must be one of {', '.join(programs)}, without options")
    starts = []
    turns = rounds * len(CONDITIONS) + 1
    with (
        tempfile.TemporaryDirectory() as full,
        tqdm(total=turns * len(engines), desc="bench startup", unit="start") as bar,
    ):
        files = {spec.name: _files_of(spec, path) for spec in engines}
        for number in range(-1, rounds):
            for condition in CONDITIONS if number >= 0 else ("warm",):
                order = list(engines)
                random.Random(f"{number}/{condition}").shuffle(order)
                for spec in order:
                    bar.set_postfix_str(f"{spec.name}, {condition}")
                    with tempfile.TemporaryDirectory() as empty:
                        if condition == "cold":
                            forget(files[spec.name])
                        caches = f"{full}/{spec.name}" if condition == "warm" else empty
                        program = programs[spec.file.stem]
                        seconds, error = _start(spec, path, program, caches, threads, timeout)
                    if number >= 0:
                        starts.append(Start(spec.name, condition, number, seconds, error))
                    bar.update(1)
    return starts


def _start(
    spec: EngineSpec, path: Path, program: Sequence[str], caches: str, threads: int, timeout: float
) -> tuple[dict[str, float], str | None]:
    """Run a program. Returns the seconds to the end of each stage, and the error's last line if it failed."""
    lines = [f"model = {str(path.resolve())!r}"]
    for code, stage in zip(program, STAGES, strict=True):
        lines += [code, f"print({MARK + stage!r}, flush=True)"]
    lines.append("import os; os._exit(0)")  # some engines take long to end, or crash
    environment = {**spec.environment(threads), **VLLM, "HF_HUB_OFFLINE": "1"}
    environment.update({name: f"{caches}/{name}" for name in CACHES})
    seconds: dict[str, float] = {}
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as elsewhere:
        start = time.perf_counter()
        process = subprocess.Popen(
            [spec.python, "-c", "\n".join(lines)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=elsewhere,  # a folder in which `python -c` finds nothing to import by mistake
            text=True,
            start_new_session=True,  # a new process group: what it starts ends with it
        )
        limit = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    if line.startswith(MARK):
                        seconds[line.removeprefix(MARK).strip()] = time.perf_counter() - start
            exit_code = process.wait()
        except BaseException:  # interrupted
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            limit.cancel()
        if STAGES[-1] in seconds:
            return seconds, None
        errors.seek(0)
        said = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        ended = f"no token within {timeout:g} s" if exit_code == -signal.SIGKILL else f"exit code {exit_code}"
        return seconds, " | ".join([ended, *said[-1:]])


def _files_of(spec: EngineSpec, path: Path) -> list[Path]:
    """What a cold start reads from the disk: the checkpoint, the engine's packages, nanoinfer itself."""
    code = "import sysconfig; print(sysconfig.get_path('platlib')); print(sysconfig.get_path('purelib'))"
    printed = subprocess.run([spec.python, "-c", code], capture_output=True, text=True, check=False).stdout
    folders = [path, *map(Path, printed.split("\n"))] if printed else [path]
    if spec.is_ours:
        folders.append(Path(__file__).parent.parent)
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir() and folder != Path()]


def forget(folders: Sequence[Path]) -> None:
    """Ask the system to drop the folders' files from its page cache, as far as nobody else uses them. Linux only; needs no
    special rights, and leaves other files alone."""
    if not hasattr(os, "posix_fadvise"):
        return
    for folder in folders:
        for file in folder.rglob("*"):
            with suppress(OSError):
                if file.is_file():
                    handle = os.open(file, os.O_RDONLY)
                    try:
                        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(handle)


def format_startup(starts: Sequence[Start]) -> str:
    """One row per condition and engine: the seconds to the end of each stage, and how many times nanoinfer's time it is."""
    rows, failures = [], []
    names = list(dict.fromkeys(start.engine for start in starts))
    for condition in CONDITIONS:
        for name in names:
            of_engine = [start for start in starts if (start.engine, start.condition) == (name, condition)]
            failures += [f"- FAILED: {name}, {condition}: {start.error}" for start in of_engine if start.error]
            cells = []
            for stage in STAGES:
                values = [start.seconds[stage] for start in of_engine if not start.error]
                spread = f" ({min(values):.2f}..{max(values):.2f})" if values and stage == STAGES[-1] else ""
                cells.append(f"{median(values):.2f}{spread}" if values else "failed")
            rows.append([condition, name, *cells, _ratio(starts, condition, names[0], name)])
    head = ["caches", "engine", *(f"{stage}, s" for stage in STAGES), f"time / {names[0]}'s" if names else ""]
    legend = (
        "Seconds since Python was started, medians over rounds (first token: lowest..highest). Cold: no compiled kernels, "
        "and files read from disk as far as the system forgot them; warm: after an earlier start."
    )
    return "\n".join([table(head, rows), "", *dict.fromkeys(failures), legend])


def _ratio(starts: Sequence[Start], condition: str, first: str, other: str) -> str:
    """How many times as long as `first` the engine `other` takes to the first token, round by round."""
    rounds: dict[str, dict[int, float]] = {first: {}, other: {}}
    for start in starts:
        if start.condition == condition and start.engine in rounds and not start.error:
            rounds[start.engine][start.round] = start.seconds[STAGES[-1]]
    ratios = [rounds[other][number] / seconds for number, seconds in rounds[first].items() if number in rounds[other]]
    if first == other or not ratios:
        return ""
    return f"{median(ratios):.1f} ({min(ratios):.1f}..{max(ratios):.1f})"
