"""OpenVINO GenAI: its continuous-batching pipeline with the prefix cache. Reads `MODEL.ov`."""

import os
from collections.abc import Callable
from typing import Any

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Peer:
    """Computes and stores K/V in `dtype`. `options` are fields of SchedulerConfig."""

    prefix_cache = True

    def __init__(self, model: str, dtype: str, threads: int, **options: Any):
        path = f"{model}.ov"
        if not os.path.isdir(path):
            raise FileNotFoundError(
                f"{path}: not found; make it with python -m nanoinfer.bench.make_models openvino {model} "
                "--optimum-cli PATH/TO/optimum-cli (from the package optimum-intel)"
            )
        import openvino
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        settings = {"cache_size": 4, "max_num_batched_tokens": 512, "max_num_seqs": 32, "enable_prefix_caching": True}
        for name, value in {**settings, **options}.items():
            setattr(scheduler, name, value)
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "KV_CACHE_PRECISION": PRECISIONS[dtype],
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.genai, self.openvino = openvino_genai, openvino
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self.prefix_cache = scheduler.enable_prefix_caching
        self.versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}
        self._serial = 0
        self._handles: dict[int, Any] = {}

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        import numpy as np

        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        self._serial += 1
        ids = self.openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._handles[index] = self.pipeline.add_request(self._serial, ids, config)

    def busy(self) -> bool:
        return bool(self._handles)

    def step(self, emit: Callable[[int, list[int]], None]) -> None:
        self.pipeline.step()
        for index, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    emit(index, output.generated_ids)
            if handle.get_status() != self.genai.GenerationStatus.RUNNING:
                del self._handles[index]
