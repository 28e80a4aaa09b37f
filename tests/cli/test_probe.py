"""What ``probe`` says and ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_a_directory_is_safe_and_left_as_it_was(cli: Cli, tmp_path: Path) -> None:
    ended = cli("probe", tmp_path / "store", "--quick")
    assert ended.code == 0
    assert "a checkpoint is safe in" in ended.out
    assert "a second create is refused" in ended.out
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_programs_get_each_finding_and_a_summary(cli: Cli) -> None:
    ended = cli("probe", "memory://probed", "--quick", "--json")
    findings = {line["name"]: line for line in ended.of_type("finding")}
    assert findings["create_only"]["state"] == "holds"
    assert findings["complete_repeatable"]["state"] == "weak"
    assert "looks at the object instead" in findings["complete_repeatable"]["remedy"]
    assert ended.summary["safe"] is True
    assert ended.summary["weak"] == ["complete_repeatable"]
    assert ended.summary["broken"] == ended.summary["unknown"] == []


def test_a_store_that_does_not_answer_ends_with_its_code_and_what_was_found(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "0123456789abcdef0123")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("S3_ENDPOINT", "http://elsewhere")
    url = "http://127.0.0.1:1"
    ended = cli("probe", "s3://bucket/x", "--endpoint-url", url, "--deadline", "1s")
    assert ended.code == 8
    assert url in ended.out
    assert "0123...0123 from env" in ended.out
    assert "0123456789abcdef" not in ended.out
    assert "S3_ENDPOINT is set, and has no effect here" in ended.out
