"""No test of the quick and the slow ring depends on how fast a machine is: rules over the syntax trees of all tests.

Seconds that the engine or the server under test gets (`timeout_s=`, `drain_timeout_s=` and so on) are no patience of the
test, and are not looked at: a test gives it a clock of its own, or the outcome is the same however long they take.

Nor does a test replace `time.monotonic` or `os.getpid` for all threads: others may be using it.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.helpers.waiting import HANG_S

TESTS = Path(__file__).parent.parent
SOAK = {"soak", "soak.py", "episodes", "traffic.py"}  # below tests/: they may depend on clocks

# (file below tests/, text of the line, reason): what a rule refuses and is right all the same.
ALLOWED: list[tuple[str, str, str]] = []

CLOCKS = {"perf_counter", "monotonic", "time", "process_time", "thread_time"}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}
ALARMS = {"Timer": 0, "setitimer": 1, "alarm": 0}  # and which argument says when
# Which argument of a call is its patience, if it is no keyword.
PATIENCE = {"join": 0, "wait": 0, "result": 0, "exception": 0, "settimeout": 0, "set_script_timeout": 0}
PATIENCE |= {"wait_for": 1, "create_connection": 1, "communicate": 1, "WebDriverWait": 1, "select": 3}
# What is under test and has a `timeout` of its own, which is no patience of the test.
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

SLEEPS = "sleeps, but in no loop that looks at something and ends"
IMPATIENT = f"waits less than {HANG_S:g} seconds"
MEASURES = "compares measured time with a number"
ALARM = "interrupts after some time"
CLOCK_WORDS = re.compile(r"perf_counter|monotonic|\btime\(|process_time|thread_time|time_ns")
WORDS = re.compile(  # a file without any of them is not parsed
    CLOCK_WORDS.pattern
    + r"|sleep\(|\btimeout=|Timer\(|setitimer|alarm\(|settimeout|set_script_timeout|WebDriverWait|select\("
    r"|(wait_for|create_connection|communicate)\(|\.(join|wait|result|exception)\(([\d.]|[A-Z_]+\b)"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.While | ast.For | ast.AsyncFor
Problem = tuple[int, str]  # line, rule


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name: `sleep` for `time.sleep`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def within(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, but not the bodies of functions that are only defined there."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield from within(child)


def is_soak(node: ast.AST) -> bool:
    """Whether a function or class is marked `soak`, or this is a file's `pytestmark` that says so."""
    marks: list[ast.expr] = []
    if isinstance(node, Function | ast.ClassDef):
        marks = node.decorator_list
    elif isinstance(node, ast.Assign) and [name_of(target) for target in node.targets] == ["pytestmark"]:
        marks = [node.value]
    return any(ast.unparse(part) == "pytest.mark.soak" for mark in marks for part in ast.walk(mark))


def ends_on_a_condition(loop: Loop) -> bool:
    """Whether a loop looks at something, and leaves when it has seen it or when a deadline has passed."""
    inside = [part for statement in loop.body for part in within(statement)]
    looks = any(isinstance(part, ast.If) for part in inside)
    leaves = any(isinstance(part, ast.Break | ast.Return | ast.Raise) for part in inside)
    if isinstance(loop, ast.While):
        looks = looks or not isinstance(loop.test, ast.Constant)
        leaves = leaves or any(isinstance(part, ast.Assert) for part in inside)
        leaves = leaves or any(map(is_reading, within(loop.test)))
    return looks and leaves


def is_reading(node: ast.AST) -> bool:
    """A look at a clock: `time.perf_counter()`, or `perf_counter()`, but not `clock.time()`."""
    if not isinstance(node, ast.Call) or name_of(node.func) not in CLOCKS or node.args:
        return False
    return isinstance(node.func, ast.Name) or ast.unparse(node.func).startswith("time.")


class Rules:
    """Goes through one file, from the outside to the inside, and collects what it refuses."""

    def __init__(self, text: str):
        tree = ast.parse(text)
        self.reads_clocks = CLOCK_WORDS.search(text) is not None
        self.problems: list[Problem] = []
        self.numbers = {"HANG_S": HANG_S, **self._numbers(tree.body)}
        self.measured: set[str] = set()  # names of measured times, and of functions that return some
        if not any(isinstance(node, ast.Assign) and is_soak(node) for node in tree.body):
            if self.reads_clocks:
                self._measured_names(tree)
            self._visit(tree)

    def _numbers(self, statements: Sequence[ast.stmt]) -> dict[str, float]:
        """Constants: names that stand for a number."""
        found: dict[str, float] = {}
        for statement in statements:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
                for target in statement.targets:
                    if isinstance(statement.value.value, int | float):
                        found[name_of(target)] = statement.value.value
        return found

    def _number(self, node: ast.AST | None) -> float | None:
        """What a literal or a constant of the file stands for."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return None if isinstance(node.value, bool) else node.value
        if isinstance(node, ast.BinOp):  # 2 * SECONDS
            left, right = self._number(node.left), self._number(node.right)
            if left is not None and right is not None and isinstance(node.op, ast.Mult | ast.Add):
                return left * right if isinstance(node.op, ast.Mult) else left + right
        if isinstance(node, ast.Call) and name_of(node.func) == "int" and node.args:
            return self._number(node.args[0])
        return self.numbers.get(node.id) if isinstance(node, ast.Name) else None

    def _hangs(self, node: ast.AST | None) -> bool:
        """Whether so many seconds are for ever: what sleeps or is interrupted then hangs, on purpose or not."""
        return (seconds := self._number(node)) is not None and seconds >= HANG_S

    def _is_short(self, node: ast.AST | None) -> bool:
        """0 is no wait at all, but a look."""
        return (seconds := self._number(node)) is not None and 0 < seconds < HANG_S

    def _is_measured(self, node: ast.AST) -> bool:
        """Whether an expression holds a difference of two looks at a clock."""
        for part in within(node):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and any(map(is_reading, within(part))):
                return True
            name = part.func if isinstance(part, ast.Call) else part
            if isinstance(name, ast.Name) and name.id in self.measured:
                return True
        return False

    def _measured_names(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self._is_measured(node.value):
                self.measured |= {name_of(target) for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, Function):
                returned = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value]
                if any(map(self._is_measured, returned)):
                    self.measured.add(node.name)

    def _visit(self, node: ast.AST, loop: Loop | None = None) -> None:
        """`loop`: the innermost one around the node, in the same function."""
        if is_soak(node):
            return
        if isinstance(node, ast.Call):
            self._call(node, loop)
        elif self.reads_clocks and isinstance(node, ast.Compare):
            self._compare(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):  # the end of a wait
            sides = (node.left, node.right), (node.right, node.left)
            if any(is_reading(clock) and self._is_short(seconds) for clock, seconds in sides):
                self.problems.append((node.lineno, IMPATIENT))
        before = self.numbers
        if isinstance(node, Function):
            loop = None
            arguments = [*node.args.posonlyargs, *node.args.args][::-1]
            defaults = zip(arguments, node.args.defaults[::-1], strict=False)
            known = {argument.arg: self._number(default) for argument, default in defaults}
            self.numbers = {**before, **{name: number for name, number in known.items() if number is not None}}
        if isinstance(node, Loop):
            loop = node
        for child in ast.iter_child_nodes(node):
            self._visit(child, loop)
        self.numbers = before

    def _call(self, call: ast.Call, loop: Loop | None) -> None:
        name, dotted = name_of(call.func), ast.unparse(call.func)
        seconds = call.args[ALARMS.get(name, 0) :][:1]
        is_harmless = any(self._number(each) == 0 or self._hangs(each) for each in seconds)
        is_alarm = name in ALARMS and dotted in (name, f"signal.{name}", f"threading.{name}")
        if name == "sleep" and not is_harmless and (loop is None or not ends_on_a_condition(loop)):
            self.problems.append((call.lineno, SLEEPS))
        if is_alarm and not is_harmless:
            self.problems.append((call.lineno, ALARM))
        patience: list[ast.expr] = [] if name in OWN_TIMEOUT else [k.value for k in call.keywords if k.arg == "timeout"]
        if name in PATIENCE:
            patience += call.args[PATIENCE[name] :][:1]
        if any(map(self._is_short, patience)):
            self.problems.append((call.lineno, IMPATIENT))

    def _compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        if any(map(self._is_measured, sides)) and any(self._number(side) and not self._hangs(side) for side in sides):
            self.problems.append((node.lineno, MEASURES))


def replaced_for_all(text: str) -> Iterator[str]:
    """What the text of a file replaces in modules that all threads share, as dotted names."""
    tree = ast.parse(text)
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


def refused(text: str) -> list[Problem]:
    """What the rules refuse in the text of a file, by line."""
    return sorted(set(Rules(text).problems)) if WORDS.search(text) else []


def files() -> list[Path]:
    """The files of the quick and the slow ring, and what they use."""
    paths = sorted(TESTS.rglob("*.py"))
    return [path for path in paths if path.relative_to(TESTS).parts[0] not in SOAK and path != Path(__file__)]


def test_no_test_depends_on_a_clock() -> None:
    problems, used = [], set()
    for path in files():
        name, text = str(path.relative_to(TESTS)), path.read_text()
        for number, rule in refused(text):
            line = text.splitlines()[number - 1].strip()
            allowed = {entry for entry in ALLOWED if entry[0] == name and entry[1] in line}
            used |= allowed
            if not allowed:
                problems.append(f"tests/{name}:{number} {rule}: {line}")
    assert not problems, "use tests/helpers/waiting.py or a fake clock:\n" + "\n".join(problems)
    assert used == set(ALLOWED), "no longer needed"


def test_no_test_replaces_what_all_threads_share() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    problems = [f"{path.relative_to(TESTS)}: {name}" for path in paths for name in replaced_for_all(path.read_text())]
    assert not problems, "use tests/helpers/own_names.py:\n" + "\n".join(problems)


# --- the rules themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("time.sleep(0.1)", SLEEPS),
        ("def f():\n    sleep(1)", SLEEPS),
        ("async def f():\n    await asyncio.sleep(0.01)", SLEEPS),
        ("time.sleep(PAUSE)", SLEEPS),
        ("for _ in range(3):\n    time.sleep(0.1)", SLEEPS),
        ("for _ in range(3):\n    assert quiet()\n    time.sleep(0.1)", SLEEPS),
        (
            "while not done():\n    assert time.monotonic() < end\n    for _ in range(3):\n        time.sleep(0.1)",
            SLEEPS,
        ),
        ("while True:\n    time.sleep(0.1)", SLEEPS),
        ("while busy():\n    time.sleep(0.1)", SLEEPS),  # hangs instead of failing
        ("while busy():\n    def f():\n        assert time.sleep(0.1)", SLEEPS),
        ("any(done() or time.sleep(0.1) for _ in range(600))", SLEEPS),
        ("event.wait(0.5)", IMPATIENT),
        ("thread.join(30)", IMPATIENT),
        ("thread.join(timeout=30)", IMPATIENT),
        ("SECONDS = 60\nthread.join(SECONDS)", IMPATIENT),
        ("SECONDS = 10\nthread.join(2 * SECONDS)", IMPATIENT),
        ("future.result(5)", IMPATIENT),
        ("queue.get(timeout=1)", IMPATIENT),
        ("lock.acquire(timeout=1.5)", IMPATIENT),
        ("asyncio.wait_for(f(), 30)", IMPATIENT),
        ("asyncio.wait_for(f(), timeout=30)", IMPATIENT),
        ("subprocess.run(['x'], timeout=60)", IMPATIENT),
        ("process.communicate(timeout=10)", IMPATIENT),
        ("socket.create_connection(address, 30)", IMPATIENT),
        ("httpx.get(url, timeout=60)", IMPATIENT),
        ("end = time.monotonic() + 10", IMPATIENT),
        ("def until(condition, seconds=30):\n    end = time.monotonic() + seconds", IMPATIENT),
        ("assert time.perf_counter() - begin < 5", MEASURES),
        ("took = time.monotonic() - begin\nassert 0.1 < took", MEASURES),
        ("LIMIT = 2\ntook = time.time() - begin\nassert took / other < LIMIT", MEASURES),
        ("def seconds(f):\n    return perf_counter() - begin\nassert seconds(g) < 5", MEASURES),
        ("threading.Timer(0.1, stop).start()", ALARM),
        ("Timer(0.1, stop).start()", ALARM),
        ("signal.setitimer(signal.ITIMER_REAL, 0.05)", ALARM),
        ("signal.alarm(60)", ALARM),
        ("@pytest.mark.slow\ndef test():\n    time.sleep(1)", SLEEPS),
        ("@pytest.mark.soak\ndef test():\n    time.sleep(1)\ndef other():\n    time.sleep(1)", SLEEPS),
    ],
)
def test_each_rule_refuses_its_examples(text: str, rule: str) -> None:
    assert [found for _, found in refused(text)] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "await_ = asyncio.sleep(0)",
        "while not done():\n    assert time.monotonic() < end\n    time.sleep(0.01)",
        "while not done() and time.monotonic() < end:\n    time.sleep(0.01)",
        "for _ in range(100):\n    if done():\n        break\n    time.sleep(0.01)",
        "thread.join()",
        "thread.join(HANG_S)",
        "thread.join(120)",
        "event.wait(0)",
        "lock.acquire(timeout=0)",
        "SECONDS = 120\nsubprocess.run(['x'], timeout=SECONDS)",
        "', '.join(names)",
        "engine.add_request([1], timeout_s=5)",
        "make_app(llm, settings={'drain_timeout_s': 0.05})",
        "grade(path, timeout=4)",
        "end = time.monotonic() + HANG_S",
        "assert output.latency <= time.perf_counter() - begin",
        "assert time.perf_counter() - begin > 0",
        "assert time.process_time() - begin < HANG_S",
        "assert clock.now - begin < 5",
        "assert simulation.time() - begin < 5",
        "signal.raise_signal(signal.SIGALRM)",
        "signal.alarm(int(HANG_S))\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)",
        "SECONDS = 300\nthreading.Timer(SECONDS, process.kill).start()",
        "def hang():\n    time.sleep(HANG_S)",
        "program = 'import time; time.sleep(9)'",
        "@pytest.mark.soak\ndef test():\n    time.sleep(1)",
        "pytestmark = pytest.mark.soak\ndef test():\n    thread.join(0.1)",
        "pytestmark = [pytest.mark.slow, pytest.mark.soak]\ndef test():\n    thread.join(0.1)",
    ],
)
def test_what_waits_for_a_condition_passes(text: str) -> None:
    assert refused(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\nmonkeypatch.setattr(time, 'sleep', f)",
        "import time\ntime.sleep = f",
        "from os import path\ndel path.join",
        "from nanoinfer.kernels import build\npatch.setattr(build.time, 'monotonic', f)",
        "from nanoinfer.kernels import build\nbuild.time.monotonic = f",
        "patch('nanoinfer.kernels.build.subprocess.Popen', f)",
        "monkeypatch.setattr('time.sleep', f)",
        "import threading\nmock.patch.object(threading.Thread, 'start', f)",
        "from pathlib import Path\nsetattr(Path, name, f)",
    ],
)
def test_what_is_replaced_for_all_threads_is_found(text: str) -> None:
    assert len([*replaced_for_all(text)]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from nanoinfer.kernels import build\npatch.setattr(build, 'time', f)",
        "monkeypatch.setattr('nanoinfer.kernels.build.time', f)",
        "import sys\nmonkeypatch.setattr(sys, 'stdin', f)",
        "copy = leaf()\ncopy.key = 3",
        "self.queue.size = 3",
        "program = 'import time; time.sleep = f'",
    ],
)
def test_what_is_replaced_for_one_module_passes(text: str) -> None:
    assert [*replaced_for_all(text)] == []


def test_lines_are_named() -> None:
    assert refused("import time\n\n\ndef test():\n    time.sleep(1)\n    event.wait(1)") == [
        (5, SLEEPS),
        (6, IMPATIENT),
    ]


def test_all_rooms_are_looked_at_but_those_of_the_soak() -> None:
    rooms = {path.relative_to(TESTS).parts[0] for path in files()}
    assert {"unit", "property", "server", "tools", "notebooks", "cluster", "helpers", "conftest.py"} <= rooms
    assert not rooms & SOAK


def test_the_one_way_to_wait_passes() -> None:
    assert refused((TESTS / "helpers" / "waiting.py").read_text()) == []
