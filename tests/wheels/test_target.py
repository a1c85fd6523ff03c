"""The Python that packages are for."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import PackageUnavailableError
from bridge.wheels.target import Target, environment, platforms, tags, target_of
from tests.wheels.rig import TARGET

FACTS: dict[str, Any] = {
    "platform": "linux",
    "implementation": "cpython",
    "python": "3.9.2",
    "free_threaded": False,
    "machine": "x86_64",
    "libc": "glibc 2.31",
}


def made(**changes: Any) -> Target:
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


def test_platforms_are_those_of_the_sandboxes_c_library() -> None:
    glibc = platforms(TARGET)
    assert glibc[0] == "manylinux_2_31_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux1_x86_64"} <= set(glibc)
    assert "manylinux_2_32_x86_64" not in glibc
    assert platforms(made(libc="musl"))[0] == "musllinux_1_2_x86_64"
    assert not any("many" in tag for tag in platforms(made(libc="musl")))
    arm = platforms(made(machine="aarch64"))
    assert "manylinux2014_aarch64" in arm
    assert not any("2010" in tag or "_2_12_" in tag for tag in arm)
    assert platforms(made(libc="")) == ()


def test_wheels_with_native_code_come_before_those_without() -> None:
    order = [str(tag) for tag in tags(TARGET)]
    assert order.index("cp39-cp39-manylinux_2_17_x86_64") < order.index("py3-none-any")
    assert "cp39-abi3-manylinux_2_31_x86_64" in order
    assert not any(tag.startswith("cp310") for tag in order)
    assert "cp39-cp39-musllinux_1_2_x86_64" in map(str, tags(made(libc="musl")))


def test_markers_are_about_the_sandboxes_python() -> None:
    around = environment(TARGET)
    assert around["python_version"] == "3.9"
    assert around["sys_platform"] == "linux"


def test_targets_that_take_other_wheels_have_other_digests() -> None:
    assert len({TARGET.digest, made(libc="musl").digest, made(python="3.9.3").digest}) == 3
