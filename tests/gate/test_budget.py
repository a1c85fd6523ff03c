"""Budgets: what a run may use up, and what all runs together may in a minute."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import CallBudgetError
from bridge.gate.tally import WINDOW, Rates, RunBudget
from bridge.settings.policy import Budgets
from tests.audit_rig import FakeClock


def test_a_run_has_so_many_calls() -> None:
    budgets = Budgets(run_calls=2)
    budget = RunBudget(budgets)
    budget.spend("a")
    budget.spend("b")
    for _ in range(2):
        with pytest.raises(CallBudgetError, match=r"all of the 2 calls it may \(budgets.run_calls"):
            budget.spend("a")
    RunBudget(budgets).spend("a")


def test_a_run_has_so_many_calls_to_each_server() -> None:
    budget = RunBudget(Budgets(server_calls=1))
    budget.spend("a")
    budget.spend("b")
    with pytest.raises(CallBudgetError, match=r"all of the 1 calls to 'a' .*budgets.server_calls"):
        budget.spend("a")


def test_a_run_is_returned_so_many_bytes() -> None:
    budget = RunBudget(Budgets(run_bytes=100))
    budget.spend("a")
    budget.took_in(99)
    budget.spend("a")
    budget.took_in(5000)
    with pytest.raises(CallBudgetError, match=r"5,099 bytes, of the 100 .*budgets.run_bytes"):
        budget.spend("a")


def test_a_minute_is_the_last_sixty_seconds_of_all_runs() -> None:
    clock = FakeClock()
    rates = Rates(clock)
    budgets = Budgets(per_minute=(("git*", 2), ("*", 3)))
    RunBudget(budgets, rates).spend("github")
    clock.now += 30
    RunBudget(budgets, rates).spend("github")
    with pytest.raises(CallBudgetError, match=r"the 2 calls a minute that 'github'") as caught:
        RunBudget(budgets, rates).spend("github")
    wait = re.search(r"in (\d+) s", str(caught.value))
    assert wait is not None
    clock.now += int(wait[1]) - 2
    with pytest.raises(CallBudgetError):
        RunBudget(budgets, rates).spend("github")
    clock.now += 2
    RunBudget(budgets, rates).spend("github")
    with pytest.raises(CallBudgetError, match="There is room again in 30 s"):
        RunBudget(budgets, rates).spend("github")


def test_each_server_has_a_minute_of_its_own() -> None:
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(per_minute=(("a", 1), ("*", 2))), rates)
    for server in ("a", "b", "b", "c"):
        budget.spend(server)
    for server in ("a", "b"):
        with pytest.raises(CallBudgetError):
            budget.spend(server)
    budget.spend("c")


def test_a_new_policy_goes_on_counting_where_the_old_one_was() -> None:
    rates = Rates(FakeClock())
    RunBudget(Budgets(), rates).spend("a")
    RunBudget(Budgets(per_minute=(("a", 9),)), rates).spend("a")
    with pytest.raises(CallBudgetError):
        RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


def test_what_one_budget_refuses_no_other_counts() -> None:
    """Or a loop that is refused would use up the minute of others."""
    rates = Rates(FakeClock())
    budget = RunBudget(Budgets(run_calls=1, per_minute=(("*", 2),)), rates)
    budget.spend("a")
    for _ in range(5):
        with pytest.raises(CallBudgetError, match="run_calls"):
            budget.spend("a")
    RunBudget(Budgets(per_minute=(("*", 2),)), rates).spend("a")


@given(
    st.integers(1, 4),
    st.lists(st.floats(0, 40, allow_nan=False), max_size=40),
)
def test_no_minute_ever_has_more_calls_than_it_may(limit: int, steps: list[float]) -> None:
    clock = FakeClock()
    rates = Rates(clock)
    made: list[float] = []
    for step in steps:
        clock.now += step
        wait = rates.wait("a", limit)
        recent = [at for at in made if at > clock.now - WINDOW - 1]
        if wait:
            assert len(recent) >= limit
            assert wait <= WINDOW + 1
        else:
            made.append(clock.now)
            rates.count("a")
        assert len([at for at in made if at > clock.now - WINDOW]) <= limit
