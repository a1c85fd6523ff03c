"""Where the user's time zone is found, and that programs live in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.settings.state import time_zone


@pytest.mark.parametrize(
    ("value", "zone"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ("/usr/share/zoneinfo/Europe/Berlin", "Europe/Berlin"),
        ("posix/Asia/Tokyo", "Asia/Tokyo"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "CET-1CEST,M3.5.0,M10.5.0/3"),
        ("<+0545>-5:45", "<+0545>-5:45"),
        ("Etc/GMT-3", "Etc/GMT-3"),
        ("Etc/UTC", "UTC"),
        ("", "UTC"),
        ("/etc/shadow", "Asia/Kolkata"),
        ("../../etc/passwd", "Asia/Kolkata"),
        ("two words\0", "Asia/Kolkata"),
    ],
)
def test_the_variable_is_taken_where_it_is_a_zone(tmp_path: Path, value: str, zone: str) -> None:
    (tmp_path / "timezone").write_text("Asia/Kolkata\n")
    assert time_zone({"TZ": value}, tmp_path) == zone


def test_the_systems_own_setting_is_a_link_a_name_or_a_rule(tmp_path: Path) -> None:
    assert time_zone({}, tmp_path) == "UTC"
    (tmp_path / "localtime").write_bytes(b"TZif2\0\xff\n\nJST-9\n")
    assert time_zone({}, tmp_path) == "JST-9"
    (tmp_path / "timezone").write_text("Asia/Seoul\n")
    assert time_zone({}, tmp_path) == "Asia/Seoul"
    (tmp_path / "localtime").unlink()
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Paris")
    assert time_zone({}, tmp_path) == "Europe/Paris"
    (tmp_path / "localtime").unlink()
    (tmp_path / "localtime").write_bytes(b"\xff")
    (tmp_path / "timezone").write_bytes(b"\xff\0")
    assert time_zone({}, tmp_path) == "UTC"
