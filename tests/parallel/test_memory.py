"""How much memory the processes of a split model need while they load: their part, and never the whole checkpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.checkpoints import save_checkpoint
from tests.helpers.waiting import HANG_S

pytestmark = pytest.mark.slow
MIB = 2**20
LAYERS, HIDDEN, MLP, VOCAB = 12, 512, 2048, 8192
LARGE = {
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": VOCAB,
}
SHARD = VOCAB * HIDDEN * 4  # bytes: the largest tensor, and the largest file
WHOLE = 4 * (LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * MLP) + 2 * VOCAB * HIDDEN)  # bytes of the checkpoint, float32
LOAD = """
import sys
from pathlib import Path
from nanoinfer import LLM
llm = LLM(sys.argv[1], tensor_parallel_size=2, max_total_tokens=64, quantization=sys.argv[2] or None)
for pid in ("self", *llm.engine.model_runner._ranks.members.pids):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    print(*(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def most_memory(path: Path, quantization: str) -> list[int]:
    """The most bytes that each of two ranks had in memory at any moment until all was loaded, mapped files included."""
    command = [sys.executable, "-c", LOAD, str(path), quantization]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of many files, each of which is open by itself."""
    path = save_checkpoint(tmp_path_factory.mktemp("large"), max_shard_size=f"{SHARD // MIB + 1}MB", **LARGE)
    assert len(list(path.glob("*.safetensors"))) > 10
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says how much memory a process had")
@pytest.mark.parametrize("quantization", ["", "int8"])
def test_no_rank_ever_has_more_than_its_part_and_one_tensor(quantization: str, large: Path, tmp_path: Path) -> None:
    """Beyond what a rank of a tiny model has."""
    tiny = most_memory(save_checkpoint(tmp_path / "tiny"), quantization)
    if not tiny:
        pytest.skip("needs a kernel that says how much memory a process had at most (VmHWM)")
    for rank, (found, base) in enumerate(zip(most_memory(large, quantization), tiny, strict=True)):
        grown = found - base
        assert grown + 8 * MIB > WHOLE / 2, "the share is there"
        assert grown < WHOLE / 2 + SHARD + 12 * MIB, f"rank {rank}: {grown / MIB:.0f} of {WHOLE / MIB:.0f} MiB"
