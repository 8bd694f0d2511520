"""What every HTTP request passes: the API key, the limit of its size, the log and the metrics."""

from __future__ import annotations

import hmac
import json
import logging
import time
import uuid
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chainrule.serving.failures import ApiError, error_response
from chainrule.serving.metrics import ServerMetrics

log = logging.getLogger("chainrule.serving.access")

PROTECTED = ("/v1/", "/api/", "/metrics", "/openapi.json", "/docs")


class Gate:
    """Pure ASGI, so that streams pass through without a copy of each chunk."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics, api_key: str | None, body_bytes: int) -> None:
        self.app, self.metrics, self.body_bytes = app, metrics, body_bytes
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, number = time.perf_counter(), uuid.uuid4().hex[:16]
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", number.encode()))
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await error_response(refusal)(scope, receive, sending)
            else:
                await self.app(scope, self._limited(receive), sending)
        finally:
            self._record(scope, status, time.perf_counter() - began, number)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.body_bytes:
            return self._too_large()
        if self._key is None or not scope["path"].startswith(PROTECTED):
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key):
            return None
        refused = ApiError(401, "the API key is missing or wrong; send it as a bearer token", code="invalid_api_key")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body exceeds {self.body_bytes:,} bytes; send less", code="body_too_large")

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.body_bytes:
                raise HTTPException(413, self._too_large().message)
            return message

        return receiving

    def _record(self, scope: Scope, status: int, seconds: float, number: str) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client = scope.get("client")
        log.info(
            "request",
            extra={
                "values": {
                    "id": number,
                    "method": scope["method"],
                    "path": route,
                    "status": status,
                    "seconds": round(seconds, 4),
                    "client": client[0] if client else None,
                }
            },
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "values", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def log_as_json(level: str) -> None:
    """Write the log of the server and of uvicorn to standard error, as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("chainrule", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
