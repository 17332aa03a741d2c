"""Routes for whoever runs the server: health, metrics, version, the model, the cache; and vLLM's for adapters."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from nanoinfer.errors import AdapterError
from nanoinfer.server.errors import ApiError, bad_request, refuse_if, shut_down
from nanoinfer.server.metrics import sample
from nanoinfer.server.protocol import LoadRequest, UnloadRequest
from nanoinfer.server.service import Service
from nanoinfer.version import __version__


def add_operation_routes(app: FastAPI, service: Service) -> None:
    """The routes of one server."""

    @app.head("/health", include_in_schema=False)  # load balancers ask so
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether it takes requests."""
        if service.drain.is_draining or service.engine.is_closed:
            raise shut_down()
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of nanoinfer."""
        return {"version": __version__}

    async def model_info() -> dict[str, Any]:
        """What is served, in SGLang's words."""
        name = service.served.name
        has = {f"has_{kind}_understanding": False for kind in ("image", "audio")}
        return {"model_path": name, "tokenizer_path": name, "is_generation": True, **has}

    app.get("/get_model_info")(model_info)
    app.get("/model_info")(model_info)  # its newer name

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """The metrics in Prometheus' text format."""
        samples = await service.engine.visit_each(sample)
        return Response(service.metrics.text(samples), media_type=CONTENT_TYPE_LATEST)

    async def flush() -> dict[str, Any]:
        """Free all cached tokens that no running request relies on. Says how many there were."""
        freed = await service.engine.visit_each(lambda engine: engine.flush_cache())
        return {"success": True, "freed_tokens": sum(freed)}

    app.post("/flush_cache")(flush)  # SGLang's
    app.post("/reset_prefix_cache")(flush)  # vLLM's

    @app.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
    async def load(body: LoadRequest) -> Response:
        """Load an adapter. Requests can then use its name as `model`."""
        folder, name = _folder(service, body.lora_path), body.lora_name
        is_free = name.strip() and name.isprintable() and name not in service.model_names()
        refuse_if(not is_free, "lora_name", "must be printable, and not the name of a model here", name)
        try:
            await service.engine.load_adapter(name, folder)
        except AdapterError as error:  # where the root is concerns nobody
            message = str(error).replace(repr(str(folder))[1:-1], body.lora_path).replace(str(folder), body.lora_path)
            raise bad_request(message, "lora_path") from error
        return PlainTextResponse(f"Success: LoRA adapter {name!r} added successfully.")

    @app.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
    async def unload(body: UnloadRequest) -> Response:
        """Forget an adapter that no request uses."""
        _root(service)
        name = body.lora_name
        if name not in service.core.adapters:
            raise ApiError(404, f"lora_name={name!r}: no such adapter", "lora_name", "model_not_found")
        try:
            await service.engine.unload_adapter(name)
        except AdapterError as error:
            raise ApiError(409, str(error), "lora_name", "adapter_in_use") from error
        return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")


def _root(service: Service) -> Path:
    root = service.settings.adapter_root
    if root is None:
        raise ApiError(403, "adapters are loaded over HTTP only from an --adapter-root", code="no_adapter_root")
    return Path(root)


def _folder(service: Service, given: str) -> Path:
    """The folder that a client means, if it is inside the root; links out of it are followed first."""
    root = _root(service)
    try:
        folder = (root / given).resolve()
        is_there = folder.is_dir()
    except (OSError, ValueError, RuntimeError):  # names that are too long, have a NUL, or links in a circle
        raise bad_request("lora_path: is no path", "lora_path") from None
    if folder == root or not folder.is_relative_to(root):
        raise ApiError(403, "lora_path: must be a folder inside --adapter-root", "lora_path", "outside_adapter_root")
    refuse_if(not is_there, "lora_path", "no such folder in --adapter-root", given)
    return folder
