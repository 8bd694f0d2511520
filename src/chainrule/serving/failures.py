"""Errors of the HTTP interface, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from chainrule.errors import ChainruleError, memory_problem
from chainrule.serving.registry import UnknownRun
from chainrule.serving.requests import DeadlineExceeded, EngineClosed, QueueFull

NAME_OF_A_TYPE = re.compile(r"[\[-]|^(str|int)$")  # where a field may have several forms, not of a field
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}


class ApiError(Exception):
    """An error that a client sees."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers: dict[str, str] = {}


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_api_error(error: Exception) -> ApiError:
    """What a client sees of an error: those of chainrule in full, all others without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UnknownRun):
        return ApiError(404, str(error), param="model", code="model_not_found")
    if isinstance(error, QueueFull):
        full = ApiError(429, str(error), code="queue_full")
        full.headers["Retry-After"] = "1"
        return full
    if isinstance(error, DeadlineExceeded):
        return ApiError(408, str(error), code="timeout")
    if isinstance(error, EngineClosed):
        return ApiError(503, str(error), code="shutting_down")
    if isinstance(error, ChainruleError):
        return ApiError(400, str(error))
    if memory_problem(error) is not None:
        return ApiError(503, "out of memory; send a smaller request, or try again later", code="out_of_memory")
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


def error_response(error: ApiError) -> JSONResponse:
    body = error_body(error.status, error.message, param=error.param, code=error.code)
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def validation_message(error: RequestValidationError) -> tuple[str, str | None]:
    """The first problem of a body in one line, and the parameter that has it."""
    first, *_ = found = error.errors()
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    name = ".".join(where) or None
    forms = [one for one in found if one["loc"][:2] == first["loc"][:2] and len(one["loc"]) > 2]
    if len(forms) > 1 and any(NAME_OF_A_TYPE.search(str(one["loc"][2])) for one in forms):
        problems = dict.fromkeys(_sentence(one["msg"]) for one in forms)
        return f"{where[0]} has none of the possible forms: {'; or '.join(problems)}", where[0]
    if first["type"] == "json_invalid":
        return f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}", None
    if first["type"] == "missing":
        return (f"{name} is missing; give it a value" if name else "the body is missing; send a JSON object"), name
    if first["type"] == "extra_forbidden":
        return f"unknown parameter {name}; remove it", name
    return f"{name or 'the body'}: {_sentence(first['msg'])}", name


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def install(app: FastAPI) -> None:
    """Answer every error of the application in this form."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        message, param = validation_message(error)
        return error_response(ApiError(400, message, param=param, code="invalid_value"))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is nothing at {request.url.path}; /docs lists the endpoints"
        answer = error_response(ApiError(error.status_code, message))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ApiError)
    async def failed(request: Request, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(ChainruleError)
    async def wrong(request: Request, error: ChainruleError) -> JSONResponse:
        return error_response(as_api_error(error))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return error_response(as_api_error(error))
