"""Names of files in the folder of a FileStore. Files with other names are somebody else's: they are left alone."""

import re

_FINISHED = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.safetensors")
_UNFINISHED = re.compile(r"unfinished-[0-9a-f]{32}")


def finished_name(fingerprint: str, content: str) -> str:
    """The name of a file with K/V: two hexadecimal digests, of which it has the first 32 digits each."""
    return f"{fingerprint[:32]}-{content[:32]}.safetensors"


def unfinished_name(random: bytes) -> str:
    """The name of a file while it is written; `random` has 16 bytes."""
    return f"unfinished-{random.hex()}"


def is_finished(name: str, fingerprint: str = "") -> bool:
    """Whether it is the name of a file with K/V, with this fingerprint if one is given."""
    return name.startswith(fingerprint[:32]) and _FINISHED.fullmatch(name) is not None


def is_unfinished(name: str) -> bool:
    """Whether it is the name of a file that is being written, or was when its process was killed."""
    return _UNFINISHED.fullmatch(name) is not None
