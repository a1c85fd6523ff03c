#!/bin/sh
# The shell by which npm runs a server's command: back in the directory of the bridge, as `launch.py` says.
[ "$npm_lifecycle_event" != npx ] || { cd -- "$MCP_BRIDGE_START_DIRECTORY" && INIT_CWD=$PWD; } || exit
unset MCP_BRIDGE_START_DIRECTORY npm_config_script_shell OLDPWD
exec /bin/sh "$@"
