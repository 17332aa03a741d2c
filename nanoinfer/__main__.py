"""`python -m nanoinfer`."""

import gc
import sys


def main() -> int:
    """Run one command; returns the exit code. Ctrl-C ends it without a traceback, even while the program is loading."""
    try:
        from nanoinfer.cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    finally:
        gc.freeze()  # or Python, at its end, looks for half a second for garbage among all that is loaded


if __name__ == "__main__":
    sys.exit(main())
