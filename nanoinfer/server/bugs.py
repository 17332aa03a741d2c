"""What is logged when something fails that should not: where, but not what it was about."""

import logging
import traceback

logger = logging.getLogger("nanoinfer.server")


def log_bug(request_id: str, error: BaseException, show_prompts: bool) -> None:
    """Log where an unexpected error was raised. Its message may quote prompts, so it is shown only with `show_prompts`."""
    message = f": {error}" if show_prompts else ""
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("request %s failed: %s%s\n%s", request_id, type(error).__name__, message, where)
