"""The layers that containers add to an engine's defaults, seen from inside of a whole run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bridge.model import Limits, RunRequest, RunResult
from bridge.runs import Engine
from bridge.runs.program import open_guest
from bridge.sandbox.backend import LaunchSpec
from bridge.sandbox.bundle import BOOTSTRAP_ARGV
from bridge.sandbox.container.connection import NAMESPACE_IDS
from bridge.settings import Settings, load
from tests.contract.programs import STANDARD_LIBRARY, echoes, on, spec
from tests.contract.rig import EngineSet, extend_configuration, own_service
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.raised import raises_code

ORDINARY_PROGRAM = STANDARD_LIBRARY + "await mcp_work_shop.add(a=1, b=2)\n"

ID_MAP = """
print(open('/proc/self/uid_map').read(), flush=True)
input()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    return load({"warm": "0"}, environ)


async def succeeds(engine: Engine, code: str) -> RunResult:
    result = await engine.run(RunRequest(code=code, timeout=60))
    assert result.status == "success", result.error
    return result


@pytest.mark.guarantee("layers-seen")
async def test_with_our_filter_programs_work_and_every_layer_is_seen(
    real_engine: str, engines: EngineSet, settings: Settings, tmp_path: Path
) -> None:
    found = engines.get(real_engine)
    async with (
        on(found, tmp_path / "run") as backend,
        engine_on(backend, settings, finder=ListFinder(workshop())) as engine,
    ):
        result = await succeeds(engine, ORDINARY_PROGRAM)
    isolation = result.isolation
    assert isolation is not None
    assert not [text for text in isolation.weaker if "seen from inside" in text]
    assert set(isolation.layers) == set(isolation.verified)
    assert {"masked-proc", "private-ipc", "seccomp", "no-network"} <= set(isolation.verified)
    # This rootless engine is another user's, who cannot read our file.
    lacking = [text for text in isolation.weaker if text.startswith("own-seccomp:")]
    assert ("own-seccomp" in isolation.verified) is not bool(lacking)
    assert bool(lacking) is (real_engine == "rootless" and os.getuid() == 0)


@pytest.mark.guarantee("own-kernel")
@pytest.mark.podman
async def test_gvisor_under_podman_is_seen_to_be_a_kernel_of_its_own(
    engines: EngineSet, settings: Settings, tmp_path: Path
) -> None:
    found = own_service(engines.get("podman"))
    async with on(found, tmp_path / "run", oci_runtime="runsc") as backend:
        probe = await backend.probe()
        async with engine_on(backend, settings, finder=ListFinder(workshop())) as engine:
            result = await succeeds(engine, ORDINARY_PROGRAM)
    for isolation in (probe.isolation, result.isolation):
        assert isolation is not None
        assert isolation.oci_runtime == "runsc"
        assert {"own-kernel", "no-network", "read-only-root"} <= set(isolation.verified)
        assert "seccomp" not in isolation.layers


@pytest.mark.guarantee("own-kernel")
@pytest.mark.podman
async def test_a_runc_that_goes_by_gvisors_name_runs_nothing(
    engines: EngineSet, tmp_path: Path
) -> None:
    runc = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert runc is not None
    spoof = tmp_path / "runsc"
    spoof.write_text(
        f'#!/bin/sh\n[ "$1" = --network=none ] && shift\nexec {runc} "$@"\n', encoding="utf-8"
    )
    spoof.chmod(0o755)
    more = f'[engine.runtimes]\nrunsc = ["{spoof}"]'
    conf = extend_configuration("CONTAINERS_CONF", tmp_path / "containers.conf", more)
    found = own_service(engines.get("podman"), CONTAINERS_CONF=conf)
    guest = LaunchSpec(run_id="spoof", argv=BOOTSTRAP_ARGV, env={}, limits=Limits())
    async with on(found, tmp_path / "run", oci_runtime="runsc") as backend:
        # The container starts: nothing but the look from inside tells.
        assert (await echoes(backend)).isolation.oci_runtime == "runsc"
        with raises_code("oci_runtime_broken", match="no kernel other than the host's"):
            async with open_guest(backend, guest):
                pytest.fail("a guest was handed over")
        probe = await backend.probe()
        assert (probe.ok, probe.error_code) == (False, "oci_runtime_broken")
    assert found.ours() == []


@pytest.mark.podman
async def test_podman_maps_ids_where_it_has_some_to_give(
    engines: EngineSet, settings: Settings, tmp_path: Path
) -> None:
    # The ordinary user has ids for one sandbox.
    user = os.environ["MCP_TEST_ROOTLESS_USER"]
    conf = extend_configuration(
        "CONTAINERS_STORAGE_CONF",
        tmp_path / "storage.conf",
        f'[storage.options]\nroot-auto-userns-user = "{user}"',
    )
    found = own_service(engines.get("podman"), CONTAINERS_STORAGE_CONF=conf)
    async with on(found, tmp_path / "run") as backend:
        async with engine_on(backend, settings, finder=ListFinder(workshop())) as engine:
            isolation = (await succeeds(engine, ORDINARY_PROGRAM)).isolation
        assert isolation is not None
        assert "user-namespace" in isolation.verified
        async with backend.launch(spec(ID_MAP)) as first:
            inside, outside, size = map(int, (await first.receive()).split())
            assert (inside, size) == (0, NAMESPACE_IDS)
            assert outside > 0
            isolation = (await echoes(backend)).isolation
    assert "user-namespace" not in isolation.layers
    assert [text for text in isolation.weaker if text.startswith("user-namespace: the engine")]
    assert found.ours() == []
