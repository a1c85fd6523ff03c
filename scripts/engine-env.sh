# shellcheck shell=bash
# Where the engines that the tests use live. Sourced by with-engines and as-rootless; does nothing else.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Images and container storage: large, kept between runs, removed by `make clean-engines`.
engines_state=$repository/.state/engines

# Sockets, pid files and run-time state: a short path (a socket's may have 107 characters), the same on
# every run because podman refuses storage whose run-time directory has moved.
engines_id=$(printf '%s' "$repository" | sha256sum | cut -c1-8)
if [ "$(id -u)" -eq 0 ]; then
    engines_run=/run/mcp-code-bridge-test-$engines_id
else
    engines_run=${XDG_RUNTIME_DIR:-$engines_state/run}/mcp-code-bridge-test-$engines_id
fi

# The ordinary user who runs rootless podman. Its directories are per clone of the repository.
rootless_user=mcpbridge-test
rootless_base=/var/lib/mcpbridge-test
rootless_home=$rootless_base/$engines_id
rootless_run=$engines_run/user
