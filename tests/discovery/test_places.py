"""What the places in templates stand for, and which project a directory belongs to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.locations import DiscoveryContext, Places, fill, find_project, path_variables


def places(home: Path, cwd: Path, **changes: object) -> Places:
    start = DiscoveryContext(home=home, cwd=cwd, platform="linux", environ={})
    context = replace(start, **changes)  # type: ignore[arg-type]  # the test's own fields
    return path_variables(context, find_project(cwd))


def made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize(
    ("cwd", "repository", "upwards"),
    [
        ("home/a/repo/src", "home/a/repo", ["home/a/repo/src", "home/a/repo", "home/a", "home"]),
        ("srv/repo/src", "srv/repo", ["srv/repo/src", "srv/repo"]),
        ("srv/x", "", ["srv/x"]),
    ],
)
def test_project_files_count_up_to_home_or_to_a_repository_outside_it(
    tmp_path: Path, cwd: str, repository: str, upwards: list[str]
) -> None:
    here = made(tmp_path / cwd)
    if repository:
        made(tmp_path / repository / ".git")
    assert places(tmp_path / "home", here)["upwards"] == tuple(tmp_path / each for each in upwards)
    assert places(tmp_path / "home", Path("/"))["upwards"] == (Path("/"),)


def test_a_home_behind_a_link_is_recognised(tmp_path: Path) -> None:
    cwd = made(tmp_path / "real" / "a")
    (tmp_path / "home").symlink_to("real")
    assert places(tmp_path / "home", cwd)["upwards"] == (cwd, tmp_path / "real")


def test_a_project_is_known_by_its_repository_then_by_its_directory(tmp_path: Path) -> None:
    cwd = made(tmp_path / "repo" / "src")
    assert find_project(cwd).keys == (str(cwd),)
    made(tmp_path / "repo" / ".git")
    project = find_project(cwd)
    assert project.root == tmp_path / "repo"
    assert project.keys == (str(tmp_path / "repo"), str(cwd))


def test_a_linked_directory_is_known_by_its_real_name_first(tmp_path: Path) -> None:
    made(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    keys = find_project(tmp_path / "link").keys
    assert keys == (str(tmp_path / "real"), str(tmp_path / "link"))


def test_a_worktree_is_known_by_its_main_repository(tmp_path: Path) -> None:
    entry = made(tmp_path / "main" / ".git" / "worktrees" / "wt")
    cwd = made(tmp_path / "wt" / "src")
    (tmp_path / "wt" / ".git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/wt\n")
    for back in (f"{tmp_path}/wt/.git\n", "../../../../wt/.git\n"):
        (entry / "gitdir").write_text(back)
        assert find_project(cwd).keys == tuple(
            str(tmp_path / name) for name in ("main", "wt", "wt/src")
        )


def test_nothing_is_a_worktree_of_a_repository_that_does_not_know_of_it(tmp_path: Path) -> None:
    """An archive can contain any `.git`, and so claim to be a project with approved servers."""
    entry = made(tmp_path / "main" / ".git" / "worktrees" / "wt")
    made(tmp_path / "wt")
    (tmp_path / "wt" / ".git").write_text(f"gitdir: {entry}\n")
    cwd = made(tmp_path / "hostile")
    (cwd / ".git").write_text(f"gitdir: {entry}\n")
    assert find_project(cwd).main == cwd
    (entry / "gitdir").write_text(f"{tmp_path}/wt/.git\n")
    assert find_project(cwd).main == cwd
    assert find_project(tmp_path / "wt").main == tmp_path / "main"
    (cwd / ".git").unlink()
    (cwd / ".git").symlink_to(tmp_path / "wt" / ".git")
    assert find_project(cwd).main == cwd


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_another_user_puts_above_the_working_directory_is_no_repository(
    tmp_path: Path,
) -> None:
    """Anyone can create `/tmp/.git`, and with it a project of everything below."""
    repository, cwd = made(tmp_path / ".git"), made(tmp_path / "mine" / "work")
    assert find_project(cwd).root == tmp_path
    os.chown(repository, 4242, -1)
    assert find_project(cwd).root is None
    assert places(tmp_path / "home", cwd)["upwards"] == (cwd,)
    # A repository of somebody else as a whole, such as one that is mounted into a container.
    os.chown(cwd, 4242, -1)
    assert find_project(cwd).root == tmp_path


def test_other_git_files_leave_the_root_as_it_is(tmp_path: Path) -> None:
    for text in ("gitdir: ../.git/modules/sub\n", "something else", "gitdir: a\0b"):
        (tmp_path / ".git").write_text(text)
        assert find_project(tmp_path).keys == (str(tmp_path),)
    (tmp_path / ".git").unlink()
    (tmp_path / ".git").symlink_to(".git")
    assert find_project(tmp_path).root is None


def test_the_extra_file_may_start_from_home_or_the_working_directory(tmp_path: Path) -> None:
    for given, path in (
        ("~/s.json", tmp_path / "h" / "s.json"),
        ("s.json", tmp_path / "s.json"),
        ("/abs/s.json", Path("/abs/s.json")),
    ):
        found = places(tmp_path / "h", tmp_path, extra_config=Path(given))
        assert fill("{extra}", found) == (path,)
    assert fill("{extra}", places(tmp_path, tmp_path)) == ()


def test_windows_program_files_have_a_default_and_no_meaning_elsewhere(tmp_path: Path) -> None:
    windows = places(tmp_path, tmp_path, platform="win32")
    assert fill("{programs}/ClaudeCode", windows) == (Path("C:/Program Files/ClaudeCode"),)
    assert fill("{programs}/ClaudeCode", places(tmp_path, tmp_path)) == ()


def test_a_template_may_be_a_plain_path(tmp_path: Path) -> None:
    assert fill("/etc/x.json", places(tmp_path, tmp_path)) == (Path("/etc/x.json"),)


def test_clients_that_look_upwards_stop_at_the_repository_s_root(tmp_path: Path) -> None:
    root, cwd = tmp_path / "repo", made(tmp_path / "repo" / "a" / "b")
    assert places(tmp_path, cwd)["within"] == places(tmp_path, cwd)["workspace"] == (cwd,)
    made(root / ".git")
    assert places(tmp_path, cwd)["within"] == (cwd, root / "a", root)
    assert places(tmp_path, cwd)["workspace"] == (cwd, root)


def test_a_client_s_own_variable_moves_its_directory(tmp_path: Path) -> None:
    environ = {
        "CODEX_HOME": "/codex",
        "GEMINI_CLI_HOME": "~/elsewhere",
        "CLINE_DIR": "/cline",
        "COPILOT_HOME": " ",
        "OPENCODE_CONFIG": "named.json",
    }
    found = places(tmp_path, tmp_path / "cwd", environ=environ)
    assert found["codex"] == (Path("/codex"),)
    assert found["gemini"] == (tmp_path / "elsewhere" / ".gemini",)
    assert found["cline_settings"] == (Path("/cline/data/settings/cline_mcp_settings.json"),)
    assert found["copilot"] == (tmp_path / ".copilot",)
    assert found["opencode_file"] == (tmp_path / "cwd" / "named.json",)
    assert found["opencode_extra"] == ()
    both = {**environ, "CLINE_DATA_DIR": "/data", "CLINE_MCP_SETTINGS_PATH": "/one.json"}
    assert places(tmp_path, tmp_path, environ=both)["cline_settings"] == (Path("/one.json"),)
