"""Clients of a background bridge that come, go and are killed, while bridges are killed too.

`python -m tests.soak.background --seconds 3600`. Every program calls a tool with a number of its
own. The exit status is 1 after an answer that belongs to another client, or a call that was made
twice. So it is if a client's next request fails, or anything has grown or is left at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import proportional_mb
from tests.background.rig import Client, Person, person, text_of, wait_for

PHASE_SECONDS = 120.0  # A calm phase, in which one bridge lives; then a phase of losses.

SLACK_SECONDS = 20.0  # From the loss of a bridge until each client has noticed it.

MEMORY_SLACK = 24  # MiB that allocators keep for minutes.

CREATE = "print((await mcp_{server}.create(title='{title}'))['title'])"

UNSENT = re.compile(r"had sent no recorded call|No run is known|once it runs again|is ending")
"""In errors that promise that no call has gone out."""


class Soak:
    """Clients in threads, and one thread that takes bridges from them."""

    def __init__(self, user: Person, seconds: float, seed: int) -> None:
        self._user = user
        self._end = time.monotonic() + seconds
        self._phase = min(PHASE_SECONDS, seconds / 2)
        self._random = random.Random(seed)
        self._paused = threading.Event()
        self._number = 0
        self._lock = threading.Lock()
        # The moments at which requests may have failed.
        self._losses: list[float] = []
        self._answered: list[str] = []
        self._unsent: list[str] = []
        self.counts = Counter[str]()
        self.complaints: list[str] = []

    def run(self, clients: int) -> None:
        works = [threading.Thread(target=self._work, args=(n,)) for n in range(clients)]
        for work in works:
            work.start()
        try:
            while not self._over():
                self._watch()
                until = time.monotonic() + self._phase
                while time.monotonic() < until and not self._over():
                    self._lose(self._random.choice(LOSSES))
                    time.sleep(self._random.uniform(0.5, 10.0))
        finally:
            self._end = 0.0
            for work in works:
                work.join()
        self._check_calls()
        self._check_rest()

    def _over(self) -> bool:
        return time.monotonic() > self._end

    def complain(self, text: str) -> None:
        self.complaints.append(text)
        print(f"{time.strftime('%H:%M:%S')} COMPLAINT {text}", flush=True)

    def _title(self, client: int) -> str:
        with self._lock:
            self._number += 1
            return f"c{client}-{self._number}-"

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over():
            if self._paused.is_set():
                time.sleep(0.1)
                continue
            try:
                with self._user.client(None, TEAM=chance.choice("aaab")) as one:
                    self._use(one.initialize(), number, chance)
            except Exception as error:
                self.complain(f"client {number}: {error!r}")
            self.counts["clients"] += 1

    def _use(self, client: Client, number: int, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 6)):
            kind = chance.choice(("calls", "calls", "calls", "cancel", "many"))
            if kind == "cancel":
                held = client.begin_run("await mcp_keeper.slow(text='x')")
                time.sleep(chance.uniform(0.0, 0.3))
                client.send(method="notifications/cancelled", params={"requestId": held})
            count = 20 if kind == "many" else chance.randint(1, 3)
            asked = {}
            began = time.monotonic()
            for _ in range(count):
                title = self._title(number)
                server = chance.choice(("keeper", "notes"))
                asked[client.begin_run(CREATE.format(server=server, title=title))] = title
            if chance.random() < 0.1:
                client.process.kill()
                self.counts["killed clients"] += 1
                return
            while asked:
                message = client.receive()
                title = asked.pop(message.get("id", ""), "")
                if title:
                    self._judge(title, message, began)
            self.counts[kind] += 1
        if chance.random() < 0.5:
            status, told = client.end()
            if status or told:
                self.complain(f"client {number} ended with {status}: {told}")

    def _judge(self, title: str, message: dict[str, Any], began: float) -> None:
        text = text_of(message)
        titles = set(re.findall(r"c\d+-\d+-", text))
        if titles - {title}:
            self.complain(f"{title} got what belongs to {titles - {title}}")
        elif titles and "error" not in message and not message["result"].get("isError"):
            self._answered.append(title)
            self.counts["answers"] += 1
        elif not any(loss > began - SLACK_SECONDS for loss in tuple(self._losses)):
            self.complain(f"{title} failed without a loss: {text}")
        else:
            self.counts["lost answers"] += 1
            self.counts[f"  {re.sub(r'[0-9a-f]{8}|c?[0-9-]+', '#', text)[:150]}"] += 1
            if UNSENT.search(text):
                self._unsent.append(title)

    def _lose(self, loss: Callable[[Person, int], object]) -> None:
        for number in self._user.bridges():
            self._losses.append(time.monotonic())
            try:
                loss(self._user, number)
            except ProcessLookupError:
                continue
            finally:
                self._losses.append(time.monotonic())
            self.counts[f"losses by {loss.__name__}"] += 1

    def _watch(self) -> None:
        """Compare the bridge without clients, after some time and after a while."""
        samples = []
        for _ in range(2):
            until = time.monotonic() + self._phase / 2
            while time.monotonic() < until and not self._over():
                time.sleep(0.2)
            self._paused.set()
            wait_for(lambda: not self._user.bridges() or not self._user.status()["clients"])
            time.sleep(2.0)
            samples += [measure(number) for number in self._user.bridges()]
            self._paused.clear()
        print(time.strftime("%H:%M:%S"), *samples, dict(self.counts), flush=True)
        if len(samples) != 2 or samples[0]["pid"] != samples[1]["pid"]:
            self.complain(f"in calm times the bridge changed: {samples}")
            return
        before, after = samples
        for name, slack in (("descriptors", 12), ("children", 4), ("memory", MEMORY_SLACK)):
            if after[name] > before[name] + slack:
                self.complain(f"{name} grew from {before[name]} to {after[name]}")

    def _check_calls(self) -> None:
        made = Counter(each["arguments"].get("title") for each in self._user.calls)
        del made[None]
        self.counts["calls"] = made.total()
        for title, count in made.items():
            if count > 1:
                self.complain(f"{title} was called {count} times")
        for title in self._answered:
            if not made[title]:
                self.complain(f"{title} was answered and not called")
        for title in self._unsent:
            if made[title]:
                self.complain(f"{title} was called, and its client was told that it was not")

    def _check_rest(self) -> None:
        """After `background stop` nothing of the bridges may be left."""
        self._user.command("background", "stop")
        try:
            wait_for(lambda: not self._user.processes(""))
        except AssertionError:
            for number in self._user.processes(""):
                words = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ")
                self.complain(f"process {number} is left: {words!r}")
        left = [path.name for path in (self._user.home / "run").rglob("*") if path.is_file()]
        left += [path.name for path in (self._user.home / "run").rglob("*.sock")]
        if any(not name.endswith(".lock") for name in left):
            self.complain(f"in the runtime directory is left: {left}")


def measure(number: int) -> dict[str, int]:
    """Return the descriptors, children and MiB of memory of a process."""
    process = Path(f"/proc/{number}")
    children = (process / f"task/{number}/children").read_text().split()
    return {
        "pid": number,
        "descriptors": len(list((process / "fd").iterdir())),
        "children": len(children),
        "memory": round(proportional_mb(number)),
    }


def kill_it(user: Person, number: int) -> None:
    os.kill(number, signal.SIGKILL)


def stop_it(user: Person, number: int) -> None:
    """Let it hang until a client replaces it."""
    os.kill(number, signal.SIGSTOP)
    wait_for(lambda: number not in user.bridges())


def terminate_it(user: Person, number: int) -> None:
    os.kill(number, signal.SIGTERM)
    wait_for(lambda: number not in user.bridges())


def background_stop(user: Person, number: int) -> None:
    user.command("background", "stop")


LOSSES = (kill_it, kill_it, stop_it, terminate_it, background_stop)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.soak.background", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="without the end")
    parser.add_argument("--clients", type=int, default=4, help="at the same time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcb-") as home, person(Path(home)) as user:
        user.add_servers("keeper", "notes")
        soak = Soak(user, options.seconds, options.seed)
        soak.run(options.clients)
        log = user.log()
        for line in log.splitlines():
            if "Traceback" in line or " ERROR " in line:
                soak.complain(line)
    print(json.dumps(soak.counts, indent=2))
    print("complaints", *(soak.complaints or ["none"]), sep="\n  ")
    return 1 if soak.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
