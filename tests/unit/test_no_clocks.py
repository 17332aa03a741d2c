"""No test of the quick and the slow tests depends on how fast a machine is: rules over the syntax trees of all tests.

Seconds that the engine or the server under test gets (`timeout_s=`, `drain_timeout_s=` and so on) are no timeout of the
test, and are not looked at. Nor does a test replace `time.monotonic` or `os.getpid` for all threads: others may use it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.waiting import HANG_S

TESTS = Path(__file__).parent.parent
# Which argument of a call is its timeout, if it is no keyword.
TIMEOUTS = {"join": 0, "wait": 0, "result": 0, "exception": 0, "settimeout": 0, "set_script_timeout": 0}
TIMEOUTS |= {"wait_for": 1, "create_connection": 1, "communicate": 1, "WebDriverWait": 1, "select": 3}
TIMEOUTS |= {"Timer": 0, "setitimer": 1, "alarm": 0}  # what interrupts after some time
# What is under test and has a `timeout` of its own, which is no timeout of the test.
OWN_TIMEOUT = {"grade", "graded", "build", "measure_startup", "fake"}
REPLACING = {"setattr", "delattr", "patch", "object"}  # monkeypatch's functions and those of unittest.mock
SHARED = {
    "time",
    "os",
    "subprocess",
    "threading",
    "socket",
    "signal",
    "_signal",
    "asyncio",
    "json",
    "pathlib",
    "builtins",
}
Loop = ast.While | ast.For | ast.AsyncFor


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name: `sleep` for `time.sleep`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_short(node: ast.expr) -> bool:
    """Whether it is a number of seconds that a slow machine may need. 0 is no wait at all, but a look."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and 0 < node.value < HANG_S


def impatient(node: ast.AST, in_loop: bool = False) -> Iterator[ast.Call]:
    """Calls that sleep outside of a loop, which would look at something, or that wait for a short time only."""
    if isinstance(node, ast.Call):
        name = name_of(node.func)
        seconds = [] if name in OWN_TIMEOUT else [each.value for each in node.keywords if each.arg == "timeout"]
        seconds += node.args[TIMEOUTS[name] :][:1] if name in TIMEOUTS else []
        if any(map(is_short, seconds)) or (name == "sleep" and not in_loop and any(map(is_short, node.args))):
            yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if any("mark.soak" in ast.unparse(each) for each in node.decorator_list):
            return
        in_loop = False
    for child in ast.iter_child_nodes(node):
        yield from impatient(child, in_loop or isinstance(node, Loop))


def replaced_for_all(tree: ast.Module) -> Iterator[str]:
    """What a file replaces in modules that all threads share, as dotted names."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    origins = {
        alias.asname or alias.name: f"{getattr(node, 'module', '')}.{alias.name}"
        for node in imports
        for alias in node.names
    }
    for node in ast.walk(tree):
        replaced = [ast.unparse(each) for each in node.targets] if isinstance(node, ast.Assign | ast.Delete) else []
        if isinstance(node, ast.Call) and name_of(node.func) in REPLACING and node.args:
            owner, *name = map(ast.unparse, node.args[:2])  # or a text with the whole name
            replaced = [owner.strip("'") if owner.startswith("'") else ".".join([owner, *name])]
        for target in replaced:
            root, *parts = target.split(".")
            owners = {*origins.get(root, root).split("."), *parts[:-1]}
            if parts and owners & SHARED and "[" not in target:
                yield target


def is_soak(tree: ast.Module) -> bool:
    marks = [node for node in tree.body if isinstance(node, ast.Assign) and name_of(node.targets[0]) == "pytestmark"]
    return any("mark.soak" in ast.unparse(node) for node in marks)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield str(path.relative_to(TESTS)), ast.parse(path.read_text())


def test_no_test_depends_on_a_clock_or_replaces_what_all_threads_share() -> None:
    problems = []
    for name, tree in trees():
        if not name.startswith("soak/") and not is_soak(tree):  # these may depend on clocks
            problems += [f"tests/{name}:{call.lineno}: {ast.unparse(call)}" for call in impatient(tree)]
        problems += [f"tests/{name}: replaces {target}" for target in replaced_for_all(tree)]
    assert not problems, "use tests/helpers/waiting.py, or a fake clock:\n" + "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(0.1)",
        "async def f():\n    await asyncio.sleep(0.01)",
        "thread.join(30)",
        "queue.get(timeout=1)",
        "asyncio.wait_for(f(), 30)",
        "threading.Timer(0.1, stop).start()",
        "@pytest.mark.soak\ndef test():\n    time.sleep(1)\ndef other():\n    time.sleep(1)",
    ],
)
def test_what_depends_on_a_clock_is_found(text: str) -> None:
    assert len([*impatient(ast.parse(text))]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import time\nmonkeypatch.setattr(time, 'sleep', f)",
        "from nanoinfer.model.kernels import build\nbuild.time.monotonic = f",
        "patch('nanoinfer.model.kernels.build.subprocess.Popen', f)",
        "import threading\nmock.patch.object(threading.Thread, 'start', f)",
    ],
)
def test_what_is_replaced_for_all_threads_is_found(text: str) -> None:
    assert len([*replaced_for_all(ast.parse(text))]) == 1
