"""nbval's own deadlines, of a few seconds each, as long as any deadline of a test: a plugin for pytest's `-p`."""

from typing import Any

import pytest

from tests.helpers.waiting import HANG_S


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Wait for a kernel's answers and outputs until it must be hanging."""
    from nbval.kernel import RunningKernel
    from nbval.plugin import IPyNbCell

    # Set to 5 in __init__; here it cannot be set.
    IPyNbCell.output_timeout = property(lambda self: HANG_S, lambda self, value: None)
    await_reply = RunningKernel.await_reply

    def patient(self: Any, msg_id: str, timeout: float | None = None) -> None:
        await_reply(self, msg_id, None if timeout is None else max(timeout, HANG_S))

    RunningKernel.await_reply = patient
