"""OpenVINO GenAI: its continuous-batching pipeline with the prefix cache. Reads `MODEL.ov`, or with `weights=int8`
and `int4` `MODEL.int8.ov` and `MODEL.int4.ov`."""

import os
from collections.abc import Callable
from typing import Any

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Peer:
    """Computes and stores K/V in `dtype`. Other `options` are fields of SchedulerConfig."""

    prefix_cache = True

    def __init__(self, model: str, dtype: str, threads: int, weights: str | None = None, **options: Any):
        path = f"{model}.{weights}.ov" if weights else f"{model}.ov"
        if not os.path.isdir(path):
            raise FileNotFoundError(f"{path}: not found; make it with optimum-cli export openvino --model {model} ...")
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
        self.genai, self.openvino, self.path, self.properties = openvino_genai, openvino, path, properties
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self.prefix_cache = scheduler.enable_prefix_caching
        self.versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}
        self._network: Any = None
        self._serial = 0
        self._handles: dict[int, Any] = {}

    def logits(self, tokens: list[int]) -> Any:
        """The logits after each token, [T, V] float32, for `bench quality`: the pipeline does not return them, so the
        model is compiled a second time, as a plain network."""
        import numpy as np

        if self._network is None:
            core = self.openvino.Core()
            model = core.read_model(f"{self.path}/openvino_model.xml")
            self._network = core.compile_model(model, "CPU", self.properties).create_infer_request()
        count = len(tokens)
        inputs = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        self._network.reset_state()
        return self._network.infer(inputs)["logits"][0].astype(np.float32)

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
