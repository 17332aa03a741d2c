"""Routes for whoever runs the server: health, metrics, version, the model, and emptying the cache."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from nanoinfer.server.errors import shut_down
from nanoinfer.server.metrics import CONTENT_TYPE, Sample
from nanoinfer.server.service import Service
from nanoinfer.version import __version__


def operation_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)  # so ask load balancers
    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether it takes requests."""
        if service.drain.is_draining or service.engine.is_closed:
            raise shut_down()
        return {"status": "ok"}

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of nanoinfer."""
        return {"version": __version__}

    async def model_info() -> dict[str, Any]:
        """What is served, in SGLang's words."""
        name = service.served.name
        has = {f"has_{kind}_understanding": False for kind in ("image", "audio")}
        return {"model_path": name, "tokenizer_path": name, "is_generation": True, **has}

    router.get("/get_model_info")(model_info)
    router.get("/model_info")(model_info)  # its newer name

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """The metrics in Prometheus' text format."""
        samples = await service.engine.visit_each(Sample.of)
        return Response(service.metrics.text(Sample.sum(samples)), media_type=CONTENT_TYPE)

    async def flush() -> dict[str, Any]:
        """Free all cached tokens that no running request relies on. Says how many there were."""
        freed = await service.engine.visit_each(lambda engine: engine.flush_cache())
        return {"success": True, "freed_tokens": sum(freed)}

    router.post("/flush_cache")(flush)  # SGLang's
    router.post("/reset_prefix_cache")(flush)  # vLLM's

    return router
