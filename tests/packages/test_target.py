"""The Python that packages are for."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from bridge.errors import PackageUnavailableError
from bridge.packages.target import PackageTarget, target_of
from tests.packages.rig import TARGET

FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

FACTS: dict[str, Any] = {
    "platform": "linux",
    "implementation": "cpython",
    "python": "3.9.2",
    "free_threaded": False,
    "machine": "x86_64",
    "libc": "glibc 2.31",
}


def made(**changes: Any) -> PackageTarget:
    return target_of({**FACTS, **changes})


def test_it_is_what_the_guest_tells() -> None:
    assert target_of(FACTS) == TARGET
    assert made(python="3.13.1", free_threaded=True).abi == "cp313t"
    assert made(implementation="pypy").abi == ""
    assert made(machine="arm64").machine == "aarch64"


@pytest.mark.parametrize(
    "lie",
    [
        {"python": "3.9.2\n--extra-index-url x"},
        {"python": 3},
        {"machine": "x86_64; rm"},
        {"machine": "../.."},
        {"libc": "glibc 2.99999"},
        {"implementation": ""},
        {"platform": "darwin"},
    ],
)
def test_what_no_python_can_be_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(PackageUnavailableError):
        made(**lie)


def test_uv_is_told_of_the_sandboxes_c_library_or_the_next_older_that_it_knows() -> None:
    assert TARGET.uv_platform == "x86_64-manylinux_2_31"
    assert made(libc="glibc 2.30").uv_platform == "x86_64-manylinux_2_28"
    assert made(libc="glibc 2.99").uv_platform == "x86_64-manylinux_2_40"
    assert made(libc="musl", machine="arm64").uv_platform == "aarch64-unknown-linux-musl"


@pytest.mark.parametrize(
    "kind", [{"implementation": "pypy"}, {"free_threaded": not FREE}, {"libc": ""}]
)
def test_a_python_of_a_kind_that_uv_cannot_be_told_of_is_refused(kind: dict[str, Any]) -> None:
    with pytest.raises(PackageUnavailableError, match="that kind of Python") as refusal:
        _ = made(**kind).uv_platform
    assert "MCP_BRIDGE_IMAGE" in refusal.value.remedy


def test_targets_that_take_other_wheels_have_other_digests() -> None:
    assert len({TARGET.digest, made(libc="musl").digest, made(python="3.9.3").digest}) == 3
