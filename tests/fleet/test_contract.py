"""What every `Backend` promises, on a real cluster: the same tests as on every other engine."""

from tests.contract.test_backend_cancellation import (  # noqa: F401
    test_cancelled_anywhere_in_a_launch_nothing_is_left,
    test_cancelled_in_a_phase_nothing_is_left,
)
from tests.contract.test_backend_contract import *  # noqa: F403
from tests.contract.test_files import test_files_make_the_round_and_nothing_else_does  # noqa: F401
