"""What `doctor --fix` does, and what it leaves to the person and to root."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.cli import doctor_fix
from bridge.cli.doctor import doctor
from bridge.cli.doctor_fix import Machine, Plan, Step, commands_text, fix, plan, this_machine
from bridge.errors import (
    EngineDownError,
    EngineNotFoundError,
    EnginePermissionError,
    ImageMissingError,
    ImagePullError,
    LaunchError,
    OciRuntimeError,
    SandboxError,
    UsageError,
)
from bridge.sandbox.backend import Probe
from bridge.sandbox.container.image import DEFAULT_FALLBACK
from bridge.sandbox.process.faults import KernelSettings
from bridge.settings import Settings, load

DEBIAN = Machine(
    user="ann", uid=1000, platform="linux", commands=frozenset({"apt-get", "systemctl"})
)
KEPT = "sudo tee -a /etc/sysctl.d/99-user-namespaces.conf"
NO_BUBBLEWRAP = "sudo apt-get install -y bubblewrap"


def _settings(home: Path, **flags: str) -> Settings:
    return load(flags, {"HOME": str(home), "PATH": ""})


def _failed(backend: str, error: type[SandboxError]) -> Probe:
    return Probe(backend=backend, ok=False, summary="no", error_code=error.code)


NOTHING = tuple(_failed(name, EngineNotFoundError) for name in ("podman", "docker", "bubblewrap"))


def test_where_nothing_is_installed_the_smallest_thing_is_named(tmp_path: Path) -> None:
    """bubblewrap: neither a daemon nor an image."""
    found = plan(NOTHING, _settings(tmp_path), DEBIAN)
    assert found == Plan((), ("# for bubblewrap:", NO_BUBBLEWRAP))
    assert f"\n{NO_BUBBLEWRAP}\n" in commands_text(found)
    fedora = replace(DEBIAN, uid=0, commands=frozenset({"dnf"}))
    assert plan(NOTHING, _settings(tmp_path), fedora).as_root[1] == "dnf install -y bubblewrap"
    named = plan(NOTHING[1:2], _settings(tmp_path, runtime="docker"), DEBIAN)
    assert named.as_root[1] == "sudo apt-get install -y docker.io"


@pytest.mark.parametrize(
    ("probe", "machine", "lines"),
    [
        (
            _failed("docker", EnginePermissionError),
            DEBIAN,
            ("sudo usermod -aG docker ann", "# then log in again"),
        ),
        (
            _failed("docker", EngineDownError),
            DEBIAN,
            ("sudo systemctl enable --now docker",),
        ),
        (
            _failed("podman", LaunchError),
            replace(DEBIAN, subordinate=("bob:100000:65536\n", "bob:100000:65536\n")),
            (
                "sudo usermod --add-subuids 165536-231071 --add-subgids 165536-231071 ann",
                "podman system migrate",
            ),
        ),
        (
            _failed("bubblewrap", EngineNotFoundError),
            replace(DEBIAN, commands=frozenset({"apt-get", "bwrap"})),
            ("sudo apt-get install -y python3",),
        ),
        (
            _failed("bubblewrap", OciRuntimeError),
            replace(DEBIAN, kernel=KernelSettings(max_user_namespaces=0)),
            (
                f"echo user.max_user_namespaces=15000 | {KEPT}",
                "sudo sysctl -w user.max_user_namespaces=15000",
            ),
        ),
    ],
)
def test_what_needs_root_is_an_exact_command(
    tmp_path: Path, probe: Probe, machine: Machine, lines: tuple[str, ...]
) -> None:
    """To be copied; none of it is run."""
    found = plan([probe], _settings(tmp_path), machine)
    assert found == Plan((), (f"# for {probe.backend}:", *lines))


def test_ubuntus_restriction_is_lifted_for_bubblewrap_alone(tmp_path: Path) -> None:
    """By a profile, not by turning the restriction off for every program."""
    machine = replace(DEBIAN, kernel=KernelSettings(apparmor_restricts=1))
    text = commands_text(
        plan([_failed("bubblewrap", OciRuntimeError)], _settings(tmp_path), machine)
    )
    assert "profile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\nEOF\n" in text
    assert "apparmor_restrict_unprivileged_userns" not in text


def test_what_works_is_left_alone(tmp_path: Path) -> None:
    """An engine that nobody needs is not broken; an image that was only fetched can be better."""
    works = Probe(backend="bubblewrap", ok=True, summary="yes")
    assert plan([*NOTHING[:2], works], _settings(tmp_path), DEBIAN) == Plan((), ())
    fetched = Probe(backend="podman", ok=True, summary="", details={"image": DEFAULT_FALLBACK})
    [step] = plan([fetched], _settings(tmp_path), DEBIAN).steps
    assert step.engine == "podman"


def test_a_missing_image_is_built_and_one_that_is_named_is_fetched(tmp_path: Path) -> None:
    """No registry has one of this machine's own."""
    missing = [_failed("podman", ImageMissingError)]
    assert [step.engine for step in plan(missing, _settings(tmp_path), DEBIAN).steps] == ["podman"]
    [step] = plan(missing, _settings(tmp_path, image="x:1"), DEBIAN).steps
    assert step.argv == ("podman", "pull", "x:1")
    own = plan(missing, _settings(tmp_path, image="localhost/x:1"), DEBIAN)
    assert own.steps == ()


async def test_steps_are_done_when_agreed_to_and_only_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a person at a terminal and without --yes, they are only told."""
    settings = load({}, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    settings.state_dir.mkdir(parents=True, mode=0o755)
    found = plan([], settings, this_machine(settings))
    assert [step.argv[0] for step in found.steps] == ["chmod"]
    assert await fix(found, settings, yes=False) == ()
    assert "--yes does it" in capsys.readouterr().err
    assert await fix(found, settings, yes=True) == (found.steps[0].says,)
    assert settings.state_dir.stat().st_mode & 0o777 == 0o700
    assert plan([], settings, this_machine(settings)).steps == ()


async def test_a_step_that_fails_is_told_and_the_next_one_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report that follows says what still does not work."""
    settings = load({}, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    steps = (Step(says="one", argv=("ls", "/no/such")), Step(says="two", argv=("true",)))
    assert await fix(Plan(steps, ()), settings, yes=True) == ("two",)
    assert "failed: ls /no/such: " in capsys.readouterr().err


async def test_yes_alone_is_a_mistake(tmp_path: Path) -> None:
    """There is nothing that it would agree to."""
    with pytest.raises(UsageError, match="needs --fix"):
        await doctor(SimpleNamespace(fix=False, yes=True, json=False), _settings(tmp_path))


async def test_the_image_is_built_from_packages_where_no_registry_answers(
    tmp_path: Path,
) -> None:
    """If the command for it is there."""
    tool = tmp_path / "mmdebstrap"
    tool.touch(mode=0o755)
    tried = []

    async def build(asked: SimpleNamespace, settings: Settings) -> int:
        tried.append(asked.offline)
        if not asked.offline:
            raise ImagePullError("no registry answers")
        return 0

    settings = load({}, {"HOME": str(tmp_path), "PATH": str(tmp_path)})
    await doctor_fix._build_on(settings, build)
    assert tried == [False, True]
    tool.unlink()
    with pytest.raises(ImagePullError, match="Debian's packages, after: .*mmdebstrap"):
        await doctor_fix._build_on(settings, build)


def test_a_directory_that_somebody_named_is_not_closed_unasked(tmp_path: Path) -> None:
    """With /var for its state, the bridge as root would close that to the whole system."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    link = tmp_path / "mcp-code-bridge"
    link.symlink_to(shared)
    for place in (shared, link):
        settings = _settings(tmp_path, state_dir=str(place))
        seen = this_machine(settings)
        assert (seen.state, seen.state_fault) == (str(shared), "open")
        found = plan(
            NOTHING, settings, replace(DEBIAN, state=seen.state, state_fault=seen.state_fault)
        )
        assert found.steps == ()
        assert found.as_root[1] == f"chmod go-rwx {shared}"
        assert found.as_root[-1] == NO_BUBBLEWRAP


def test_a_state_directory_is_opened_to_its_user_and_left_to_root_if_another_s(
    tmp_path: Path,
) -> None:
    settings = _settings(tmp_path)
    place = str(settings.state_dir)
    settings.state_dir.mkdir(parents=True, mode=0o500)
    assert this_machine(settings).state_fault == "closed"
    closed = plan(NOTHING, settings, replace(DEBIAN, state=place, state_fault="closed"))
    assert [step.argv for step in closed.steps] == [("chmod", "u+rwx", place)]
    foreign = plan(NOTHING, settings, replace(DEBIAN, state=place, state_fault="foreign"))
    assert foreign.steps == ()
    assert foreign.as_root[1] == f"sudo chown -R ann {place}"


async def test_doctor_fails_where_nothing_can_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run would be refused: it has to write its log before it calls."""
    settings = _settings(tmp_path)
    settings.state_dir.parent.mkdir(parents=True)
    for broken in ("file", "dangling link"):
        if broken == "file":
            settings.state_dir.touch()
        else:
            settings.state_dir.symlink_to(tmp_path / "nowhere")
        asked = SimpleNamespace(fix=False, yes=False, json=True)
        assert await doctor(asked, settings) == 1
        state = json.loads(capsys.readouterr().out)["state"]
        assert state == {"path": str(settings.state_dir), "problem": "File exists"}
        assert await doctor(SimpleNamespace(fix=True, yes=True, json=False), settings) == 1
        told = capsys.readouterr()
        assert (
            f"FAIL  state: nothing can be kept in {settings.state_dir}: File exists.\n" in told.out
        )
        assert "MCP_BRIDGE_STATE_DIR" in told.out
        settings.state_dir.unlink()
    status = await doctor(SimpleNamespace(fix=False, yes=False, json=True), settings)
    document = json.loads(capsys.readouterr().out)
    assert document["state"]["problem"] == ""
    assert status == (0 if document["chosen"] else 1)


def test_the_user_is_who_runs_it_not_who_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo -E` leaves the names; and in a container a user may have none."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "mallory")
    assert this_machine(_settings(tmp_path)).user == pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert this_machine(_settings(tmp_path)).user == "4000000"


def test_systemd_that_did_not_start_the_system_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, which often has its commands."""
    (tmp_path / "systemctl").touch(mode=0o755)
    settings = load({}, {"HOME": str(tmp_path), "PATH": str(tmp_path)})
    monkeypatch.setattr(doctor_fix, "_BOOTED", tmp_path / "none")
    assert "systemctl" not in this_machine(settings).commands
    monkeypatch.setattr(doctor_fix, "_BOOTED", tmp_path)
    assert "systemctl" in this_machine(settings).commands


async def test_a_step_whose_command_cannot_be_started_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load({}, {"HOME": str(tmp_path), "PATH": str(tmp_path)})
    (tmp_path / "broken").touch(mode=0o644)
    steps = tuple(Step(says=name, argv=(name, "x")) for name in ("gone", "broken"))
    assert await fix(Plan(steps, ()), settings, yes=True) == ()
    assert capsys.readouterr().err.count("failed: ") == 2
