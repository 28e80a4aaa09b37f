"""The options that verbs share, and what makes a verb out of a function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from ckptstore.cli.config_file import configure, variable_of

T = TypeVar("T")


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
    stats: Annotated[
        str,
        typer.Option(
            "--stats", metavar="TIME", help="How often to say how far it is, off a terminal."
        ),
    ] = "30s"
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            is_eager=True,
            callback=configure,
            help="Where options may stand as well, instead of ~/.config/ckptstore/config.toml.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Writing:
    """Options of the verbs that write, for S3 alone."""

    sse: Annotated[
        str | None,
        typer.Option("--sse", metavar="KIND", help="S3 encrypts by AES256 or aws:kms[:dsse]."),
    ] = None
    kms_key_id: Annotated[
        str | None, typer.Option("--kms-key-id", metavar="ID", help="With this key of KMS.")
    ] = None
    storage_class: Annotated[
        str | None,
        typer.Option("--storage-class", metavar="CLASS", help="S3 class of what is written."),
    ] = None
    request_payer: Annotated[
        bool, typer.Option("--request-payer", help="Pay for requests to another's S3 bucket.")
    ] = False


def verb(function: Callable[..., Awaitable[int]]) -> Callable[..., None]:
    """Return ``function`` as typer wants it: with the shared options, run to an exit code.

    Its first parameter, the ``Command``, is what the shared options become. A parameter whose
    type is a class of options, such as ``S3Writing``, stands for all of them.
    """
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    groups = {p.name: hints[p.name] for p in own if is_dataclass(hints[p.name])}
    parameters = [p.replace(annotation=hints[p.name]) for p in own if p.name not in groups]
    for group in (*groups.values(), Shared):
        parameters += _parameters_of(group)
    name = function.__name__.removesuffix("_")

    def run_verb(**values: Any) -> None:  # noqa: ANN401
        from ckptstore.cli.run import run

        options = _taken(Shared, values)
        grouped = {name: _taken(group, values) for name, group in groups.items()}
        raise typer.Exit(run(name, options, lambda command: function(command, **values, **grouped)))

    run_verb.__name__ = name
    run_verb.__doc__ = inspect.getdoc(function)
    run_verb.__annotations__ = {p.name: _with_twin(p.annotation) for p in parameters}
    run_verb.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=run_verb.__annotations__[p.name]) for p in parameters]
    )
    return run_verb


def _parameters_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]


def _taken(group: type[T], values: dict[str, Any]) -> T:
    """Return a group of options, which is then no longer among the values."""
    return group(**{field.name: values.pop(field.name) for field in fields(group)})  # type: ignore[arg-type]


def _with_twin(annotation: Any) -> Any:  # noqa: ANN401
    """Give an option the environment variable that its flag makes."""
    for info in getattr(annotation, "__metadata__", ()):
        if isinstance(info, OptionInfo):
            # In an annotation, typer takes the first flag for the default.
            info.envvar = variable_of([str(info.default), *(info.param_decls or ())])
            info.show_envvar = False  # Said once, in the help of the whole.
    return annotation
