"""Style that matters, as a test. The limits only ever go down."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "ckptstore").rglob("*.py"))
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
WAITS = ("join", "result", "wait", "get", "acquire", "communicate")


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX
    for node in functions(path):
        assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, node.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_import_contract_names_every_module() -> None:
    """Import-linter does not miss what nobody named; we do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = project["tool"]["importlinter"]["contracts"][0]["layers"]
    named = {name.strip(" ()").removeprefix("ckptstore.") for x in lines for name in x.split("|")}
    there = {path.stem for path in (ROOT / "ckptstore").iterdir() if not path.name.startswith("_")}
    assert there - {"py", "design"} <= named


def test_no_test_sleeps_for_real() -> None:
    slept = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]
    assert slept == []


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine that users do not have."""
    pattern = "[/]work/|[/]tmp/bash|[.][.]/shared"  # Does not match itself.
    found = subprocess.run(
        ["git", "grep", "-nE", pattern], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == ""
