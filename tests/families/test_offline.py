"""The bundled model needs no network, from the first import on."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_neither_import_nor_the_bundled_model_touches_the_network() -> None:
    program = """
import socket

def refuse(*args, **kwargs):
    raise AssertionError("network")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from nanoinfer import LLM, SamplingParams
params = SamplingParams(max_new_tokens=2, ignore_eos=True)
print(len(LLM("story", max_total_tokens=64).generate("Once", params)[0].token_ids))
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2"]
