"""The HTTP application: the API, the files of the page, and the headers that protect both."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.stores.concurrency import in_threads
from airflow_provider_streamsem.version import __version__
from airflow_provider_streamsem.web.documents import (
    Comparison,
    PipelineSummary,
    Problem,
    QuarantinedRecord,
    Settings,
    VersionDetail,
    VersionPage,
)
from airflow_provider_streamsem.web.pipelines import LoggedPipeline

PAGE = pathlib.Path(__file__).parent / "page"
"""The files of the page. ``make page`` builds them."""
_HEADERS = {
    # Chakra adds style elements. Scripts come only from this server.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


router = APIRouter(prefix="/api")


def _authenticated() -> None:
    """Refuse a request that nobody has authenticated. :func:`create_app` replaces this function."""
    raise HTTPException(500, "the application has no authentication")


def _readable() -> Sequence[LoggedPipeline]:
    """Return the pipelines that a request may read. :func:`create_app` replaces this function."""
    raise HTTPException(500, "the application has no authorization")


Readable = Annotated[Sequence[LoggedPipeline], Depends(_readable)]


def _requested(id: str, pipelines: Readable) -> LoggedPipeline:
    found = next((pipeline for pipeline in pipelines if pipeline.id == id), None)
    if found is None:
        raise HTTPException(404, "there is no such pipeline, or you may not read it")
    return found


Number = Annotated[int, Path(ge=0, lt=N)]
Requested = Annotated[LoggedPipeline, Depends(_requested)]


@router.get("/settings", operation_id="settings")
def settings(request: Request, pipelines: Readable) -> Settings:
    """Return the settings of the page."""
    return Settings(version=__version__, shows_records=request.app.state.shows_records)


@router.get("/pipelines", operation_id="pipelines")
def summaries(pipelines: Readable) -> list[PipelineSummary]:
    """Return the pipelines that the user may read. A log that cannot be read has a ``problem``."""
    return in_threads(_summary, pipelines)


@router.get("/pipelines/{id}", operation_id="pipeline")
def summary(pipeline: Requested) -> PipelineSummary:
    """Return one pipeline."""
    return pipeline.summary()


@router.get("/pipelines/{id}/versions", operation_id="versions")
def versions(
    pipeline: Requested,
    before: Annotated[int | None, Query(ge=0, le=N)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> VersionPage:
    """Return versions in descending order."""
    return pipeline.page(before=before, limit=limit)


@router.get("/pipelines/{id}/versions/{version}", operation_id="version")
def version(pipeline: Requested, version: Number) -> VersionDetail:
    """Return one version."""
    return pipeline.detail(version)


@router.get("/pipelines/{id}/versions/{version}/quarantine", operation_id="quarantine")
def quarantine(
    request: Request, pipeline: Requested, version: Number, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> list[QuarantinedRecord]:
    """Return the first quarantined records of a version, if the deployment shows the contents of records."""
    if not request.app.state.shows_records:
        raise HTTPException(403, "this deployment does not show the contents of records")
    return pipeline.quarantined(version, limit=limit)


@router.get("/pipelines/{id}/comparison", operation_id="comparison")
def comparison(
    pipeline: Requested, older: Annotated[int, Query(ge=0, lt=N)], newer: Annotated[int, Query(ge=0, lt=N)]
) -> Comparison:
    """Compare two closed versions."""
    return pipeline.comparison(older, newer)


def create_app(
    *,
    authenticated: Callable[..., None],
    readable: Callable[..., Sequence[LoggedPipeline]],
    shows_records: bool,
) -> FastAPI:
    """
    Return the application. Every route requires authentication.

    :param authenticated: a dependency of FastAPI that raises an ``HTTPException`` if nobody is logged in
    :param readable: a dependency of FastAPI that returns the pipelines that the user of the request may read
    :param shows_records: whether the API returns the contents of quarantined records
    """
    app = FastAPI(
        title="Streamsem", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        dependencies=[Depends(_authenticated)],
    )  # fmt: skip
    app.dependency_overrides = {_authenticated: authenticated, _readable: readable}
    app.state.shows_records = shows_records
    app.include_router(router)
    app.middleware("http")(_protected)
    app.add_exception_handler(StreamsemError, _reported)
    files = StaticFiles(directory=PAGE, html=True, check_dir=False)

    @app.get("/{path:path}", include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        if not PAGE.is_dir():
            raise HTTPException(404, "the page is not built in this checkout; run `make page`")
        return await files.get_response(path or ".", request.scope)

    return app


async def _protected(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the headers that protect the page to a response."""
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _reported(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error of this package."""
    assert isinstance(error, StreamsemError)
    status = 404 if isinstance(error, InvalidError) else 503 if error.retryable else 500
    return JSONResponse(_problem(error).model_dump(), status_code=status)


def _summary(pipeline: LoggedPipeline) -> PipelineSummary:
    try:
        return pipeline.summary()
    except StreamsemError as error:
        return pipeline.unreadable(_problem(error))


def _problem(error: StreamsemError) -> Problem:
    return Problem(error=type(error).__name__, message=str(error))


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the API, from which the client of the page is generated."""
    app = FastAPI(title="Streamsem", version=__version__)
    app.include_router(router)
    return app.openapi()
