"""Serves the page for the logs of one user, on this machine only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from fastapi import FastAPI

from airflow_provider_streamsem.web.app import create_app
from airflow_provider_streamsem.web.memory import MemoryBudget
from airflow_provider_streamsem.web.pipelines import LoggedPipeline, ServedLog

HOST = "127.0.0.1"


def app_of(logs: Sequence[str], *, shows_records: bool) -> FastAPI:
    """Return the application for some logs. It requires no authentication, because it is for one user."""
    memory = MemoryBudget()
    pipelines = [LoggedPipeline(str(number), ServedLog(log, cache=memory.cache)) for number, log in enumerate(logs)]
    return create_app(
        authenticated=lambda: None,
        readable=lambda: pipelines,
        shows_records=shows_records,
        show_records_with="the flag --show-records",
        memory=memory,
    )


def serve(logs: Sequence[str], *, port: int, shows_records: bool, on_start: Callable[[str], None]) -> None:
    """
    Serve the page until the process is interrupted.

    :param port: 0: any free port
    :param on_start: called with the URL of the page, once the server accepts connections
    :raises OSError: the port is in use
    """
    import uvicorn
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = app_of(logs, shows_records=shows_records)
    # Otherwise, a web site whose name resolves to this machine could read the API with the browser of the user.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST])
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen()
    on_start(f"http://{HOST}:{listener.getsockname()[1]}/")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
