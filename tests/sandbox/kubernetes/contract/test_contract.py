"""What every `Backend` promises, on the cluster of this process: the same tests as elsewhere.

But for the limit of memory, which its kubelet does not apply, and for cancellation, which is tested
by an event loop that has nothing else to do; `tests/fleet` has both on a real cluster.
"""

from tests.contract.test_backend_contract import *  # noqa: F403

del test_memory_beyond_the_limit_is_reported_as_such  # noqa: F821
