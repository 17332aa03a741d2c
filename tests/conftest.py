"""What all tests share: how examples are drawn, what runs in one process, tiny random checkpoints, and their oracle."""

import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
import torch

from nanoinfer import LLM
from nanoinfer.device import npu_problem
from nanoinfer.model.kernels.build import library_or_reason
from nanoinfer.model.loader import load_model

if TYPE_CHECKING:
    import transformers
    from selenium.webdriver import Chrome

gc.disable()  # while files are imported, which takes a quarter less then
# jsonschema takes this package if it is there (Jupyter installs it), and then compiles its grammar for seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

pytest.register_assert_rewrite("tests.helpers")  # their asserts say as much as those of tests

SLOW_MARK = "mark.slow"
ALL_SLOW = re.compile(rf"^pytestmark = .*{SLOW_MARK}", re.MULTILINE)

# In the quick and the slow tests examples are the same in every run; the soak draws them anew (--hypothesis-profile=soak).
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.register_profile("soak", hypothesis.settings.get_profile("fixed"), derandomize=False)
hypothesis.settings.load_profile("fixed")


class _DrawsOfTest:
    """A random generator that begins anew with every test, the same way in every run, whatever ran before."""

    def __init__(self) -> None:
        self._test, self._rng = "", np.random.default_rng(0)

    def __getattr__(self, name: str) -> Any:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if test != self._test:
            self._test, self._rng = test, np.random.default_rng(list(test.encode()))
        return getattr(self._rng, name)


@pytest.fixture(autouse=True, scope="session")
def _no_chance() -> Iterator[None]:
    """A request without a seed, and whoever else asks the system for one, gets those of its test; in the soak, real."""
    if hypothesis.settings().derandomize:
        system, ours = np.random.default_rng, _DrawsOfTest()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np.random, "default_rng", lambda seed=None: ours if seed is None else system(seed))
            yield
    else:
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where a model is loaded that a test loads without saying where")


@pytest.fixture(autouse=True, scope="session")
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """`pytest --device cuda tests/families`: what holds for an engine holds for one on a GPU."""
    device = request.config.getoption("--device")
    init: Any = inspect.unwrap(LLM.__init__)
    parameters = inspect.signature(load_model).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    with pytest.MonkeyPatch.context() as patch:
        if device != "cpu":
            patch.setitem(init.__kwdefaults__, "device", device)
            patch.setattr(load_model, "__defaults__", tuple({**defaults, "device": device}.values()))
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m slow` does not even import the files in which no test is marked so, and the quick tests do not import those that
    are marked so as a whole, because that takes each process seconds."""
    chosen = config.option.markexpr
    if chosen not in ("slow", "not slow and not soak") or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    return True if (SLOW_MARK not in text if chosen == "slow" else ALL_SLOW.search(text)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What has been imported is no garbage: no collection looks at it again, nor does Python when it ends."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A file is only seen to have slow tests if it says so itself."""
    if item.get_closest_marker("slow") is not None:
        assert SLOW_MARK in item.path.read_text(), (
            f"{item.nodeid}: is slow, but nothing in its file is marked {SLOW_MARK}"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs in an event loop of its own, until it hangs."""
    from tests.helpers.waiting import run

    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run(lambda: pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, the tests of a file run in one process, but each run of a notebook where there is room."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return nodeid if file.endswith("test_notebooks.py") else file

    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny models are faster on one thread, and a test run beside other work is not slowed down by waiting threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _kernels() -> None:
    """They are compiled, if they must be, before a test looks at standard error, where that is told."""
    library_or_reason()


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c() -> Iterator[None]:
    """SIGINT interrupts, here and in the programs that tests start, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _no_terminal() -> None:
    """What the program prints is not cut to the width of a terminal that somebody else has."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="module")
def patient_files() -> Iterator[None]:
    """Engines with a `cache_dir` wait for their files as long as tests wait: a thread that is late is no stalled disk. They
    look for files of other processes when they start and when they are told to."""
    from tests.helpers.waiting import HANG_S

    disk = "nanoinfer.cache.tiers.disk"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoinfer.engine.tiers.FIRST_LOOK_S", HANG_S)
        patch.setattr("nanoinfer.engine.control.SAVE_AT_SHUTDOWN_S", HANG_S)
        patch.setattr(f"{disk}.STALLED_S", HANG_S)
        patch.setattr(f"{disk}.LOOK_AGAIN_S", HANG_S)
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint("qwen3", tie_word_embeddings=True)` → a directory with such a random checkpoint, made once."""
    from tests.helpers.checkpoints import save_checkpoint  # transformers takes seconds to load

    made: dict[tuple[object, ...], Path] = {}

    def make(family: str = "llama", **changes: object) -> Path:
        key = (family, repr(sorted(changes.items())))
        if key not in made:
            made[key] = save_checkpoint(tmp_path_factory.mktemp(family), family, **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def oracle() -> "Callable[[Path], transformers.PreTrainedModel]":
    """`oracle(path)` → the same checkpoint in transformers, loaded once."""
    import transformers

    loaded: dict[Path, transformers.PreTrainedModel] = {}

    def load(path: Path) -> "transformers.PreTrainedModel":
        if path not in loaded:
            loaded[path] = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
        return loaded[path]

    return load


@pytest.fixture(scope="session")
def story() -> LLM:
    """The bundled model. Shared: a test that changes its engine's state beyond adding requests makes its own."""
    return LLM("story", max_running_requests=8)


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    """Headless Chromium, started once. Skips where there is none."""
    from tests.helpers.chromium import chromium

    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def browser(_chromium: "Chrome") -> "Chrome":
    """The session's browser as a test wants to find it, whatever the test before left open, emulated or logged."""
    from tests.helpers.chromium import clean

    clean(_chromium)
    return _chromium


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test begins with the same random numbers of torch; those marked `npu` or `cuda` run where there is one."""
    torch.manual_seed(0)
    if item.get_closest_marker("cpu") is not None and item.config.getoption("--device") != "cpu":
        pytest.skip("is about the CPU's kernels, what they promise, or the CPU's tensors")
    if item.get_closest_marker("npu") is not None and (problem := npu_problem()) is not None:
        pytest.skip(problem)
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
