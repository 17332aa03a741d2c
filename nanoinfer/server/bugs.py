"""What is logged when something fails that should not: where, but not what it was about."""

import logging
import traceback
from typing import Any

logger = logging.getLogger("nanoinfer.server")


def log_bug(request_id: str, error: BaseException, show_prompts: bool) -> None:
    """Log where an unexpected error was raised. Its message may quote prompts, so it is shown only with `show_prompts`."""
    error = error.__cause__ or error  # Starlette wraps what is raised when an answer has begun
    message = f": {error}" if show_prompts else ""
    logger.error("request %s failed: %s%s\n%s", request_id, type(error).__name__, message, _where(error))


class Discreet(logging.Formatter):
    """Writes of an exception where it was raised and its type, not its message, nor what led to it."""

    def formatException(self, ei: Any) -> str:
        """What is logged below a line that has an exception."""
        kind, error, _ = ei
        return f"{_where(error)}{kind.__name__}"


def _where(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__))
