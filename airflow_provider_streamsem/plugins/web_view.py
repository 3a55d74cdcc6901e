"""
The web view in Airflow's UI: an entry of the navigation, and a tab of each DAG, DAG run and task instance.

Airflow loads plugins in all of its components, and only the API server needs the application. So the first request creates it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

import airflow
from airflow.plugins_manager import AirflowPlugin
from anyio import to_thread
from packaging.version import Version

from airflow_provider_streamsem.web.addresses import PREFIX

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebView:
    """The application of the web view, as an ASGI callable."""

    _app: Any = None

    def _create(self) -> Any:
        from airflow_provider_streamsem.hooks import settings
        from airflow_provider_streamsem.plugins.access import authenticated, memory, readable
        from airflow_provider_streamsem.web.app import create_app

        return create_app(
            authenticated=authenticated,
            readable=readable,
            shows_records=settings.shows_records(),
            show_records_with="the setting [streamsem] show_records",
            memory=memory(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if self._app is None:
            self._app = await to_thread.run_sync(self._create)  # the imports take a second
        await self._app(scope, receive, send)


def _view(destination: str, route: str) -> dict[str, str]:
    """Return a page of Airflow's UI that shows the web view. A tab of a DAG, of a DAG run or of a task instance shows all pipelines of the DAG."""
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

    The provider metadata does not name it. Without ``[core] lazy_discover_providers``, Airflow also loads plugins from there, and would load this one twice.
    """

    name = "streamsem"
    fastapi_apps: ClassVar[list[dict[str, Any]]] = [{"app": WebView(), "url_prefix": PREFIX, "name": "Streamsem"}]
    # Before Airflow 3.1.8, the API server does not read the user's token from the cookie, so no page of a plugin could be shown.
    external_views: ClassVar[list[dict[str, str]]] = (
        []
        if Version(airflow.__version__) < Version("3.1.8")
        else [
            _view("nav", "streamsem"),
            _view("dag", "streamsem_dag"),
            _view("dag_run", "streamsem_dag_run"),
            _view("task_instance", "streamsem_task_instance"),
        ]
    )
