"""The HTTP application: the API, the files of the page, and the headers that protect both."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.staticfiles import StaticFiles

from airflow_provider_streamsem.errors import InvalidError, StreamsemError
from airflow_provider_streamsem.protocol.keys import N
from airflow_provider_streamsem.telemetry import log_of
from airflow_provider_streamsem.verbs import ACTIONS
from airflow_provider_streamsem.version import __version__
from airflow_provider_streamsem.web.documents import (
    Comparison,
    PipelineSummary,
    Problem,
    QuarantinedRecord,
    Settings,
    VersionDetail,
    VersionPage,
    form_of,
)
from airflow_provider_streamsem.web.encoding import encoded
from airflow_provider_streamsem.web.memory import MemoryBudget
from airflow_provider_streamsem.web.pipelines import LoggedPipeline

PAGE = pathlib.Path(__file__).parent / "page"
"""The files of the page. ``make page`` builds them, and the repository contains them."""
_THREADS = 8
"""The number of requests that read logs at a time."""
_LIST_BYTES = 16 << 20
"""The number of bytes of the list of pipelines after which it has only the names of the others."""
_JSON = "application/json"
_WAITING = 64
"""The number of requests that may wait for a thread."""
logger = log_of(__name__)
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


async def _in_thread(request: Request, document: Callable[[], object]) -> Response:
    """A store that does not respond must not occupy the threads of Airflow's API server, so the function runs in one of a few others."""
    return Response(await _encoded(request, document), media_type=_JSON)


async def _encoded(request: Request, document: Callable[[], object]) -> bytes:
    limiter: CapacityLimiter = request.app.state.limiter
    memory: MemoryBudget = request.app.state.memory
    if limiter.statistics().tasks_waiting >= _WAITING:
        raise HTTPException(503, "the server is reading too many logs. Do: try again later.")
    return await to_thread.run_sync(memory.run, lambda: encoded(document()), limiter=limiter)


async def _requested(request: Request, id: str, pipelines: Readable) -> LoggedPipeline:
    found = next((pipeline for pipeline in pipelines if pipeline.id == id), None)
    if found is None:
        summary = f"there is no pipeline with the id {id!r}, or you may not read its DAGs"
        raise HTTPException(404, f"{summary}. Do: open the list of pipelines, or ask for access to the DAG.")
    return found


Number = Annotated[int, Path(ge=0, lt=N)]
Compared = Annotated[int, Query(ge=0, lt=N)]
Requested = Annotated[LoggedPipeline, Depends(_requested)]


@router.get("/settings", operation_id="settings")
async def settings(request: Request) -> Settings:
    """Return the settings of the page."""
    state = request.app.state
    return Settings(
        version=__version__, actions=[form_of(verb) for verb in ACTIONS.values()], shows_records=state.shows_records,
        show_records_with=state.show_records_with,
    )  # fmt: skip


@router.get("/pipelines", operation_id="pipelines", response_model=list[PipelineSummary])
async def summaries(request: Request, pipelines: Readable) -> Response:
    """Return the pipelines that the user may read. A log that cannot be read has a ``problem``."""
    found: list[bytes] = []
    for pipeline in pipelines:
        found.append(await _summary(request, pipeline, is_full=sum(map(len, found)) > _LIST_BYTES))
    return Response(b"[" + b",".join(found) + b"]", media_type=_JSON)


@router.get("/pipelines/{id}", operation_id="pipeline", response_model=PipelineSummary)
async def summary(request: Request, pipeline: Requested) -> Response:
    """Return one pipeline."""
    return await _in_thread(request, lambda: pipeline.checked().summary())


@router.get("/pipelines/{id}/versions", operation_id="versions", response_model=VersionPage)
async def versions(
    request: Request,
    pipeline: Requested,
    before: Annotated[int | None, Query(ge=0, le=N)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Return versions in descending order."""
    return await _in_thread(request, lambda: pipeline.checked().page(before=before, limit=limit))


@router.get("/pipelines/{id}/versions/{version}", operation_id="version", response_model=VersionDetail)
async def version(request: Request, pipeline: Requested, version: Number) -> Response:
    """Return one version."""
    shows_records = request.app.state.shows_records
    return await _in_thread(request, lambda: pipeline.checked().detail(version, shows_records=shows_records))


@router.get(
    "/pipelines/{id}/versions/{version}/quarantine", operation_id="quarantine", response_model=list[QuarantinedRecord]
)
async def quarantine(
    request: Request, pipeline: Requested, version: Number, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> Response:
    """Return the first quarantined records of a version, if the deployment shows the contents of records."""
    if not request.app.state.shows_records:
        raise HTTPException(
            403,
            f"the contents of quarantined records are hidden. Do: use {request.app.state.show_records_with}, or run `streamsem quarantine`.",
        )
    return await _in_thread(request, lambda: pipeline.checked().quarantined(version, limit=limit))


@router.get("/pipelines/{id}/comparison", operation_id="comparison", response_model=Comparison)
async def comparison(request: Request, pipeline: Requested, older: Compared, newer: Compared) -> Response:
    """Compare two closed versions."""
    return await _in_thread(request, lambda: pipeline.checked().comparison(older, newer))


def create_app(
    *,
    authenticated: Callable[..., None],
    readable: Callable[..., Sequence[LoggedPipeline]],
    shows_records: bool,
    memory: MemoryBudget,
    show_records_with: str,
) -> FastAPI:
    """
    Return the application. Every route requires authentication.

    :param authenticated: a dependency of FastAPI that raises an ``HTTPException`` if nobody is logged in
    :param readable: a dependency of FastAPI that returns the pipelines that the user of the request may read
    :param shows_records: whether the API returns the contents of quarantined records
    :param memory: limits the memory for logs
    :param show_records_with: the setting or the flag that shows them
    """
    app = FastAPI(
        title="Streamsem", version=__version__, docs_url=None, redoc_url=None, openapi_url=None,
        dependencies=[Depends(_authenticated)],
    )  # fmt: skip
    app.dependency_overrides = {_authenticated: authenticated, _readable: readable}
    app.state.shows_records, app.state.show_records_with = shows_records, show_records_with
    app.state.limiter, app.state.memory = CapacityLimiter(_THREADS), memory
    app.include_router(router)
    app.middleware("http")(_protected)
    app.add_exception_handler(StreamsemError, _reported)
    files = StaticFiles(directory=PAGE, html=True, check_dir=False)

    @app.get("/{path:path}", include_in_schema=False)
    async def page(request: Request, path: str) -> Response:
        if not PAGE.is_dir():
            summary = "the files of the page are missing from the installed package. Do: install the package again."
            raise HTTPException(404, summary)
        return await files.get_response(path or ".", request.scope)

    return app


async def _protected(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _reported(request: Request, error: Exception) -> Response:
    assert isinstance(error, StreamsemError)
    status = 404 if isinstance(error, InvalidError) else 503 if error.retryable else 500
    return Response(encoded(_problem(error)), status, media_type=_JSON)


async def _summary(request: Request, pipeline: LoggedPipeline, *, is_full: bool) -> bytes:
    """Any error affects only this pipeline. With ``is_full``, the list has no room for another log."""
    try:
        if is_full:
            raise InvalidError("the list has too many bytes").advising("open the page of this pipeline.")
        return await _encoded(request, lambda: pipeline.checked().summary())
    except HTTPException:
        raise
    except StreamsemError as error:
        return encoded(pipeline.unreadable(_problem(error)))
    except Exception as error:
        logger.warning("the log of pipeline %s cannot be read", pipeline.id, exc_info=True)
        message = "the log cannot be read. Do: read the log of the server."
        return encoded(pipeline.unreadable(Problem(error=type(error).__name__, message=message)))


def _problem(error: StreamsemError) -> Problem:
    return Problem(error=type(error).__name__, message=str(error))


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the API, from which the client of the page is generated."""
    app = FastAPI(title="Streamsem", version=__version__)
    app.include_router(router)
    return app.openapi()
