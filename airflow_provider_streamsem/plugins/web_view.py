"""
The web view in Airflow's UI: an entry of the navigation, and a tab of each DAG and task instance.

Airflow loads plugins in all of its components, and only the API server needs the application. So the application is created by its first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/streamsem"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebView:
    """The application of the web view, as an ASGI callable."""

    @cached_property
    def _app(self) -> Any:
        from airflow_provider_streamsem.hooks import settings
        from airflow_provider_streamsem.plugins.access import authenticated, readable
        from airflow_provider_streamsem.web.app import create_app

        return create_app(authenticated=authenticated, readable=readable, shows_records=settings.shows_records())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._app(scope, receive, send)


def _view(destination: str, route: str) -> dict[str, str]:
    """Return a page of Airflow's UI that shows the web view, with the pipelines of a DAG if it is a tab of a DAG or a task instance."""
    fragment = "" if destination == "nav" else "#/dags/{DAG_ID}"
    return {
        "name": "Streamsem",
        "href": f"{PREFIX.lstrip('/')}/{fragment}",
        "destination": destination,
        "url_route": route,
        **({"category": "browse"} if destination == "nav" else {}),
    }


class StreamsemPlugin(AirflowPlugin):  # type: ignore[misc]
    """
    The plugin. The distribution's entry point ``airflow.plugins`` names it.

    The provider metadata does not: Airflow loads its plugins only without ``[core] lazy_discover_providers``, and would then load this one twice.
    """

    name = "streamsem"
    fastapi_apps: ClassVar[list[dict[str, Any]]] = [{"app": WebView(), "url_prefix": PREFIX, "name": "Streamsem"}]
    external_views: ClassVar[list[dict[str, str]]] = [
        _view("nav", "streamsem"),
        _view("dag", "streamsem_dag"),
        _view("dag_run", "streamsem_dag_run"),
        _view("task_instance", "streamsem_task_instance"),
    ]
