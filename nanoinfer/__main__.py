"""`python -m nanoinfer`."""

import sys

from nanoinfer.cli import main

if __name__ == "__main__":
    sys.exit(main())
