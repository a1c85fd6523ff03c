"""The contract of every `Backend`, on the cluster of this process.

Its kubelet applies no memory limit, and cancellation needs an event loop without other work.
`tests/fleet` tests both on a real cluster.
"""

from tests.contract.test_backend_contract import *  # noqa: F403

del test_memory_beyond_the_limit_is_reported_as_such  # noqa: F821
