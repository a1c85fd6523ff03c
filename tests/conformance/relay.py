"""Hand a scenario's address to the test that runs the suite: relay.py SOCKET URL. Exits as told.

The suite starts all its clients at once, each as a process; what they do is done in the test's.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    task = {
        "url": sys.argv[2],
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    }
    connection.sendall(json.dumps(task).encode() + b"\n")
    # One byte; none when the scenario went wrong.
    sys.exit(not connection.recv(1))
