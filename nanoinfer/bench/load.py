"""Other work on the machine: processes that keep the cores busy while an engine is measured."""

import subprocess
import sys
from types import TracebackType

LONGEST = 3600  # seconds after which a process ends by itself, whatever happens to the one that started it
SPIN = f"""
import ctypes, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # dies with its parent
print("started", flush=True)
end = time.monotonic() + {LONGEST}
while time.monotonic() < end:
    sum(range(1000))
"""


class Load:
    """While a `with` block runs, `count` processes of this Python compute without a pause, on any of its cores."""

    def __init__(self, count: int):
        self.count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Load":
        try:
            for _ in range(self.count):
                command = [sys.executable, "-I", "-S", "-c", SPIN]
                # A session of its own: some schedulers share the cores between sessions, not between processes.
                self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
            for process in self._processes:  # wait until each has begun
                assert process.stdout is not None
                process.stdout.readline()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()
        self._processes.clear()
