"""Workers that wait for a program: what they have imported by then, and who gets the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.guest import imports
from bridge.guest.processes import Children, cpu_clock
from bridge.guest.supervisor.supervisor import PreforkedWorker, PreforkedWorkers
from bridge.sandbox.bundle import BOOTSTRAP_ARGV

SOON = 120.0


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        os.sched_yield()


def wait_until_imported(directory: Path) -> None:
    mark = directory / "imported"
    wait_until(lambda: mark.exists() and mark.read_text().endswith("\n"))


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.fixture
def with_data_packages(make_guest: Any, tmp_path: Path) -> Any:
    """A guest whose Python has a `numpy` that says when it was imported."""
    packages = tmp_path / "packages"
    (packages / "numpy").mkdir(parents=True)
    (packages / "numpy" / "__init__.py").write_text(
        f"import os\nopen({str(tmp_path / 'imported')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    )
    source = f"import sys\nsys.path.append({str(packages)!r})\nexec({BOOTSTRAP_ARGV[-1]!r})"
    return make_guest(bootstrap=source)


def test_a_program_that_names_a_data_package_finds_it_imported(
    with_data_packages: Any, tmp_path: Path
) -> None:
    with_data_packages.hello()
    wait_until_imported(tmp_path)
    with_data_packages.start(
        "import os, sys\nbefore = 'numpy' in sys.modules\nimport numpy\n[before, os.getpid()]"
    )
    importer = int((tmp_path / "imported").read_text())
    assert with_data_packages.finish().value == [True, importer]


def test_a_program_that_names_none_gets_a_worker_without_them(
    with_data_packages: Any, tmp_path: Path
) -> None:
    with_data_packages.hello()
    wait_until_imported(tmp_path)
    with_data_packages.start("import sys\n('num' + 'py') in sys.modules")
    assert with_data_packages.finish().value is False


def test_a_program_sees_no_process_but_its_own_family(
    with_data_packages: Any, tmp_path: Path
) -> None:
    """The worker that was not chosen is gone, or going."""
    with_data_packages.hello()
    wait_until_imported(tmp_path)
    waiting = children_of(with_data_packages.pid)
    assert len(waiting) == 2
    with_data_packages.start("import os, time\nos.getpid()")
    chosen = with_data_packages.finish().value
    assert chosen in waiting
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in waiting))


def test_little_memory_means_no_packages_ahead_of_time(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    assert imports.installed(imports.DATA, ["/nowhere", str(tmp_path)]) == ("numpy",)
    assert imports.installed(imports.DATA, ["/nowhere"]) == ()


def test_the_end_of_the_waiting_worker_ends_the_sandbox(make_guest: Any) -> None:
    guest = make_guest()
    guest.hello()
    wait_until(lambda: children_of(guest.pid))
    os.kill(children_of(guest.pid)[0], signal.SIGKILL)
    assert guest.wait() == 70
    assert "waited for the program has ended" in guest.diagnostics()


def test_getting_ready_is_not_counted_as_the_programs_time(make_guest: Any) -> None:
    guest = make_guest()
    guest.hello()
    wait_until(lambda: children_of(guest.pid))
    worker = children_of(guest.pid)[0]
    wait_until(lambda: cpu_clock(worker) > 0.03)
    before = cpu_clock(worker)
    guest.start("import os\nsum(os.times()[:2])")
    finished = guest.finish()
    assert finished.exit.cpu_ms < (finished.value - before) * 1000 + 50


def test_a_clock_of_no_process_reads_zero() -> None:
    assert cpu_clock(2**22 + 1) == 0.0
    assert cpu_clock(os.getpid()) > 0.0


def test_steps_import_one_module_each_and_pass_over_what_is_absent() -> None:
    code = (
        "import sys\nsys.path.insert(0, %r)\nfrom bridge.guest import imports\n"
        "steps = imports.steps(['colorsys', 'no_such_module', 'sys', 'wave'])\n"
        "next(steps); assert 'colorsys' in sys.modules and 'wave' not in sys.modules\n"
        "next(steps); assert 'wave' in sys.modules\n"
        "assert list(steps) == []\n"
        "assert list(imports.steps(['colorsys', 'sunau'], seconds=-1)) == []\n"
    )
    root = str(Path(imports.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code % root], check=True)


def test_the_number_of_a_worker_that_has_ended_is_left_alone() -> None:
    """The kernel gives it to others."""
    children = Children()
    workers = PreforkedWorkers(children)
    with subprocess.Popen(["sleep", "60"]) as other:
        one, two, three, four = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
        workers._waiting.append(PreforkedWorker(other.pid, one, two, three, four, packages=()))
        with pytest.raises(ChildProcessError):
            workers.reap_ended()
        other.terminate()
    assert other.returncode == -signal.SIGTERM, "it was killed before"
