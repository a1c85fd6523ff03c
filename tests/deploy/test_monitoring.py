"""What `/metrics` says, and the alert rules and the dashboard that read it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from bridge.errors import CODES, BridgeError
from bridge.event_loop import _samples, background_task, count_metric, exposition
from bridge.model import RunRequest
from bridge.model.names import Reason
from bridge.runs import Engine
from bridge.server.admission import Replica
from tests.deploy.test_manifests import DEPLOY, one
from tests.engine_rig import ListFinder, workshop
from tests.waiting import until

MONITORING = DEPLOY / "monitoring"
RULES = MONITORING / "alerts.yml"
NAME = re.compile(r"\bmcp_code_bridge_\w+")


def scrape(replica: Replica) -> str:
    response = replica.probe({"type": "http", "method": "GET", "path": "/metrics"})
    assert response is not None
    return bytes(response.body).decode()


def samples(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    return {name.removeprefix("mcp_code_bridge_"): float(value) for name, _, value in lines}


def promtool(*words: str, stdin: str = "") -> str:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: scripts/system-packages installs it on Debian")
    done = subprocess.run(["promtool", *words], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder(workshop(), workshop("other"))


@pytest.mark.parametrize("settings", [{"listed_servers_only": "1"}], indirect=True)
async def test_metrics_count_runs_their_waits_and_their_calls(engine: Engine) -> None:
    before = samples(scrape(Replica(engine)))
    await engine.run(RunRequest(code="await mcp_work_shop.add(a=1, b=2)", servers=("work-shop",)))
    await engine.run(RunRequest(code="1/0"))
    hidden = "await runtime.call_tool('rehto'[::-1], 'add', {'a': 1, 'b': 2})"
    await engine.run(RunRequest(code=hidden, servers=("work-shop",)))
    await engine.run(RunRequest(code=hidden.replace("rehto", "none")))
    with pytest.raises(BridgeError):
        await engine.run(RunRequest(code="1", servers=("none",)))
    text = scrape(Replica(engine))
    now = samples(text)
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    assert {name: value for name, value in grown.items() if value and "_total" in name} == {
        'runs_total{status="success",reason=""}': 1.0,
        'runs_total{status="error",reason="exception"}': 3.0,
        'runs_total{status="error",reason="unknown_server"}': 1.0,
        'calls_total{server="work-shop",outcome="ok"}': 1.0,
        'calls_total{server="other",outcome="denied"}': 1.0,
    }
    assert grown["run_seconds_count{}"] == grown['run_seconds_bucket{le="+Inf"}'] == 5.0
    assert grown["queue_seconds_count{}"] == grown['sandbox_start_seconds_count{warm="no"}'] == 4.0
    assert now["runs_queued"] == now["sessions_unsaved"] == now["store_up"] == 0.0
    replica = Replica(engine)
    async with background_task(replica.tend):
        await until(lambda: not replica.missing)
        assert samples(scrape(replica))["store_up"] == 1.0
        engine.heartbeat.silence = "the database server cannot be reached"
        assert samples(scrape(replica))["store_up"] == 0.0
    promtool("check", "metrics", stdin=text)


def test_labels_are_escaped() -> None:
    count_metric("calls_total", server='"\\\n', outcome="ok")
    try:
        assert r'_calls_total{server="\"\\\n",outcome="ok"} 1.0' in exposition({})
    finally:
        _samples["calls_total"].clear()


def expressions() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    found = [rule["expr"] for group in groups for rule in group["rules"]]
    return found + [query["expr"] for panel in dashboard["panels"] for query in panel["targets"]]


async def test_what_reads_metrics_and_reasons_names_those_that_exist(engine: Engine) -> None:
    types = dict(re.findall(r"# TYPE (\S+) (\w+)", scrape(Replica(engine))))
    read = {name for each in expressions() for name in NAME.findall(each)}
    assert {name.removesuffix("_bucket") for name in read} == types.keys()
    assert {types[name.removesuffix("_bucket")] for name in read if name not in types} == {
        "histogram"
    }
    reasons = {one for each in expressions() for one in re.findall(r'reason=~?"([^"]+)', each)}
    known = {*CODES, *(kind.code for kind in _subclasses(BridgeError)), *get_args(Reason)}
    assert {one for each in reasons for one in each.split("|")} <= known

    scaler = one("HorizontalPodAutoscaler", "overlays/replicated/availability.yaml")
    assert [each["pods"]["metric"]["name"] in types for each in scaler["spec"]["metrics"]] == [True]


def _subclasses(of: type[BridgeError]) -> list[type[BridgeError]]:
    return [of, *(deeper for each in of.__subclasses__() for deeper in _subclasses(each))]


FIRING = {
    "StoreIsDown": ("store_up{}", "1 0 0 0"),
    "SessionsAreUnsaved": ("sessions_unsaved{}", "1x9"),
    "SandboxesAreLost": ('runs_total{reason="sandbox_lost"}', "0 1 9 9"),
    "SandboxesDoNotStart": ('runs_total{reason="engine_down"}', "0 1 9 9"),
    "BridgeFails": ('runs_total{reason="engine"}', "0 0 1 1"),
    "RunsFindNoRoom": ('runs_total{reason="quota"}', "0+1x20"),
    "RunsWaitLong": ('queue_seconds_bucket{le="30"}', "0+1x30"),
    "ServerFails": ('calls_total{server="s",outcome="unknown"}', "0+1x30"),
}


@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires(alert: str, tmp_path: Path) -> None:
    name, values = FIRING[alert]
    series = [{"series": f"mcp_code_bridge_{name}", "values": values}]
    if "_bucket" in name:
        series.append({"series": series[0]["series"].replace("30", "+Inf"), "values": values})
    query: dict[str, Any] = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": "25m" if "+" in values else "8m" if "x" in values else "3m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [query]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(file))
