"""The ``@task.micro_batch`` decorator: runs a pipeline whose transform is the decorated function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.operators.micro_batch import MicroBatchOperator
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline


class _MicroBatchDecoratedOperator(DecoratedOperator, MicroBatchOperator):  # type: ignore[misc]
    """A :class:`MicroBatchOperator` whose transform is a function in the DAG file."""

    custom_operator_name = "@task.micro_batch"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *MicroBatchOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {**DecoratedOperator.template_fields_renderers}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        parameters = list(inspect.signature(python_callable).parameters.values())
        if not parameters:
            raise InvalidError(
                "a function under @task.micro_batch must take a DataFrame", function=python_callable.__name__
            )
        if op_args or parameters[0].name in (op_kwargs or {}):
            raise InvalidError(
                "a function under @task.micro_batch receives its DataFrame from the operator, and takes the other arguments by keyword",
                function=python_callable.__name__,
                filled_in=parameters[0].name,
            ).advising("pass only the other arguments, by keyword.")
        # DecoratedOperator binds the arguments to the function's signature. The DataFrame does not exist yet, so None is bound in its place.
        super().__init__(python_callable=python_callable, op_args=[None], op_kwargs=dict(op_kwargs or {}), **kwargs)
        self.op_args: list[Any] = []
        if self.run_in == "submit":
            raise InvalidError(
                'run_in="submit" cannot be combined with @task.micro_batch, because a driver in another process cannot import a function of a DAG file',
                function=python_callable.__name__,
            ).advising('use MicroBatchOperator for run_in="submit".')
        if self.pipeline is not None:
            _refuse_transform(self.pipeline)

    def rendered_pipeline(self, context: Any) -> Pipeline:
        function = functools.wraps(self.python_callable)(functools.partial(self.python_callable, **self.op_kwargs))
        pipeline = super().rendered_pipeline(context)
        _refuse_transform(pipeline)
        return pipeline.replace(transform=function)


def _refuse_transform(pipeline: Pipeline) -> None:
    if pipeline.transform is not None:
        summary = "a pipeline under @task.micro_batch must not have a transform, because the decorated function is the transform"
        raise InvalidError(summary, given=pipeline.transform_name)


def micro_batch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """
    Turn ``fn(df) -> df`` into a task that runs a pipeline with ``fn`` as its transform.

    The function runs in the task's process, once per batch attempt. The task's XCom ``return_value`` is the run's result, as for :class:`MicroBatchOperator`.

    :param python_callable: ``fn(DataFrame, **kwargs) -> DataFrame`` or ``fn(DataFrame, **kwargs) -> {sink name: DataFrame}``. The operator supplies the
        DataFrame. The call in the DAG supplies the other arguments, by keyword only
    :param multiple_outputs: ignored; Airflow passes it to every task decorator. The result is a single small JSON value
    :param kwargs: arguments of :class:`MicroBatchOperator`. ``pipeline`` must not have a transform, and ``run_in`` must not be ``"submit"``: a driver in
        another process cannot import a function of a DAG file
    :raises InvalidError: the function has no parameter for the DataFrame; the call passes the DataFrame or positional arguments; the pipeline has a
        transform; ``run_in`` is ``"submit"``; or an argument of the operator is not valid
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=_MicroBatchDecoratedOperator,
        **kwargs,
    )
