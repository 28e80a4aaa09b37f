"""The options that verbs share, and what makes a verb out of a function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Options that stand after every verb. Each has a twin in the environment."""

    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line on stdout, a summary last."),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no notes, errors only.")
    ] = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="Say more; twice, everything."
        ),
    ] = 0
    deadline: Annotated[
        str,
        typer.Option("--deadline", metavar="TIME", help="Give up after this long: 90s, 30m, 2h."),
    ] = "30m"
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", metavar="N", min=1, help="Requests under way at once."),
    ] = 32
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Profile of the AWS configuration."),
    ] = None
    endpoint_url: Annotated[
        str | None,
        typer.Option("--endpoint-url", metavar="URL", help="S3 endpoint, if it is not AWS's."),
    ] = None


def verb(function: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Return ``function`` as typer wants it: with the shared options, run to an exit code.

    Its first parameter, the ``Command``, is what the shared options become.
    """
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    shared = get_type_hints(Shared, include_extras=True)
    parameters += [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=shared[field.name],
        )
        for field in fields(Shared)
    ]
    name = function.__name__.removesuffix("_")

    def run_verb(**values: Any) -> None:  # noqa: ANN401
        from ckptstore.cli.run import run

        options = Shared(**{field.name: values.pop(field.name) for field in fields(Shared)})
        raise typer.Exit(run(name, options, lambda command: function(command, **values)))

    run_verb.__name__ = name
    run_verb.__doc__ = inspect.getdoc(function)
    run_verb.__annotations__ = {p.name: _with_twin(p.name, p.annotation) for p in parameters}
    run_verb.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=run_verb.__annotations__[p.name]) for p in parameters]
    )
    return run_verb


def _with_twin(name: str, annotation: Any) -> Any:  # noqa: ANN401
    """Give an option the environment variable that its name makes."""
    for info in getattr(annotation, "__metadata__", ()):
        if isinstance(info, OptionInfo):
            info.envvar = f"CKPTSTORE_{name.upper()}"
            info.show_envvar = False  # Said once, in the help of the whole.
    return annotation
