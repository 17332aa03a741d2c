"""The OpenAPI description, /openapi.json: what routes take is read from their types; what all of them answer is added."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

ERROR = {
    "description": "An error, in OpenAI's shape.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}


def describe(app: FastAPI) -> None:
    """Replace FastAPI's own 422, which is never sent, by the errors that are."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for operations in made["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    operation["responses"] |= {"4XX": ERROR, "5XX": ERROR}
            schemas = made.get("components", {}).get("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
