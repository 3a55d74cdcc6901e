"""The HTTP application: the API, the files of the page, and the headers that protect both."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.telemetry import log_of
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
_THREADS = 8
"""The number of requests that read logs at a time."""
_WAITING = 64
"""The number of requests that may wait for a thread."""
logger = log_of(__name__)
T = TypeVar("T")
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
    """Refuse an unauthenticated request. :func:`create_app` replaces this function."""
    raise HTTPException(500, "the application has no authentication. Do: create it with create_app.")


def _readable() -> Sequence[LoggedPipeline]:
    """Return the pipelines that a request may read. :func:`create_app` replaces this function."""
    raise HTTPException(500, "the application has no authorization. Do: create it with create_app.")


Readable = Annotated[Sequence[LoggedPipeline], Depends(_readable)]


async def _in_thread(request: Request, call: Callable[..., T], *arguments: Any) -> T:
    """
    Run a function that reads a log, in one of a few threads. Airflow's API server has threads of its own, which a store that does not respond must not occupy.

    :raises HTTPException: too many requests wait for a thread
    """
    limiter: CapacityLimiter = request.app.state.limiter
    if limiter.statistics().tasks_waiting >= _WAITING:
        raise HTTPException(503, "the server is reading too many logs. Do: try again later.")
    return await to_thread.run_sync(partial(call, *arguments), limiter=limiter)


async def _requested(request: Request, id: str, pipelines: Readable) -> LoggedPipeline:
    found = next((pipeline for pipeline in pipelines if pipeline.id == id), None)
    if found is None:
        summary = f"there is no pipeline with the id {id!r}, or you may not read its DAGs"
        raise HTTPException(404, f"{summary}. Do: open the list of pipelines, or ask for access to the DAG.")
    return await _in_thread(request, found.checked)


Number = Annotated[int, Path(ge=0, lt=N)]
Compared = Annotated[int, Query(ge=0, lt=N)]
Requested = Annotated[LoggedPipeline, Depends(_requested)]


@router.get("/settings", operation_id="settings")
async def settings(request: Request) -> Settings:
    """Return the settings of the page."""
    return Settings(version=__version__, shows_records=request.app.state.shows_records)


@router.get("/pipelines", operation_id="pipelines")
async def summaries(request: Request, pipelines: Readable) -> list[PipelineSummary]:
    """Return the pipelines that the user may read. A log that cannot be read has a ``problem``."""
    return [await _in_thread(request, _summary, pipeline) for pipeline in pipelines]


@router.get("/pipelines/{id}", operation_id="pipeline")
async def summary(request: Request, pipeline: Requested) -> PipelineSummary:
    """Return one pipeline."""
    return await _in_thread(request, pipeline.summary)


@router.get("/pipelines/{id}/versions", operation_id="versions")
async def versions(
    request: Request,
    pipeline: Requested,
    before: Annotated[int | None, Query(ge=0, le=N)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> VersionPage:
    """Return versions in descending order."""
    return await _in_thread(request, partial(pipeline.page, before=before, limit=limit))


@router.get("/pipelines/{id}/versions/{version}", operation_id="version")
async def version(request: Request, pipeline: Requested, version: Number) -> VersionDetail:
    """Return one version."""
    shows_records = request.app.state.shows_records
    return await _in_thread(request, partial(pipeline.detail, version, shows_records=shows_records))


@router.get("/pipelines/{id}/versions/{version}/quarantine", operation_id="quarantine")
async def quarantine(
    request: Request, pipeline: Requested, version: Number, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> list[QuarantinedRecord]:
    """Return the first quarantined records of a version, if the deployment shows the contents of records."""
    if not request.app.state.shows_records:
        raise HTTPException(
            403,
            "the contents of quarantined records are hidden. Do: set [streamsem] show_records, start `streamsem ui` with --show-records, "
            "or run `streamsem quarantine`.",
        )
    return await _in_thread(request, partial(pipeline.quarantined, version, limit=limit))


@router.get("/pipelines/{id}/comparison", operation_id="comparison")
async def comparison(request: Request, pipeline: Requested, older: Compared, newer: Compared) -> Comparison:
    """Compare two closed versions."""
    return await _in_thread(request, pipeline.comparison, older, newer)


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
    app.state.shows_records, app.state.limiter = shows_records, CapacityLimiter(_THREADS)
    app.include_router(router)
    app.middleware("http")(_protected)
    app.add_exception_handler(StreamsemError, _reported)
    files = StaticFiles(directory=PAGE, html=True, check_dir=False)

    @app.get("/{path:path}", include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        if not PAGE.is_dir():
            summary = "the files of the page are missing. Do: run `make page` in a checkout, otherwise install the package again."
            raise HTTPException(404, summary)
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
    """Return the document of a pipeline. Any error affects only this pipeline."""
    try:
        return pipeline.checked().summary()
    except StreamsemError as error:
        return pipeline.unreadable(_problem(error))
    except Exception as error:
        logger.warning("the log of pipeline %s cannot be read", pipeline.id, exc_info=True)
        message = "the log cannot be read. Do: read the log of the server."
        return pipeline.unreadable(Problem(error=type(error).__name__, message=message))


def _problem(error: StreamsemError) -> Problem:
    return Problem(error=type(error).__name__, message=str(error))


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the API, from which the client of the page is generated."""
    app = FastAPI(title="Streamsem", version=__version__)
    app.include_router(router)
    return app.openapi()
