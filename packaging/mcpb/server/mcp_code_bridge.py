"""Start the bridge as a desktop bundle, with what its user has chosen."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

POLICIES = Path(__file__).resolve().parent
BUNDLE = POLICIES.parent


def enter_environment() -> None:
    """Go on in an environment with the bundle's wheel and what its lock names, by their hashes.

    `uv run` would take the newest versions: it has no option for hashes.
    """
    lock, wheels = BUNDLE / "requirements.lock", [*BUNDLE.glob("*.whl")]
    if not lock.exists() or not wheels:
        return
    parts = (lock.read_bytes(), wheels[0].read_bytes(), sys.version.encode())
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / caches, "mcp-code-bridge")
    place = base / f"bundle-{sha256(b''.join(parts)).hexdigest()[:16]}"
    if place == Path(sys.prefix):
        return
    if not place.exists():
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            made = Path(scratch) / "environment"
            uv = os.environ.get("UV", "uv")
            into = ("--quiet", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy")
            into = (*into, "--python", str(made / "bin" / "python"))
            for command in (
                (uv, "venv", "--quiet", "--python", sys.executable, made),
                (uv, "pip", "install", "--require-hashes", "--requirement", lock, *into),
                (uv, "pip", "install", "--no-index", wheels[0], *into),
            ):
                # The client reads stdout.
                subprocess.run(command, check=True, stdout=sys.stderr)
            with suppress(OSError):  # Another start was faster.
                made.rename(place)
    python = str(place / "bin" / "python")
    os.execv(python, [python, __file__, *sys.argv[1:]])


def choose() -> str | None:
    """Put the user's choices into the environment; return what is wrong with them."""
    for name, value in list(os.environ.items()):
        # What the user left empty arrives empty, or as the manifest's placeholder.
        if name.startswith(("MCP_BRIDGE_", "MCPB_")) and (
            not value or value.startswith("${user_config.")
        ):
            del os.environ[name]
    policy = os.environ.pop("MCPB_POLICY", "settings")
    if policy == "settings":
        return None
    file = POLICIES / f"{policy}.toml"
    if policy not in ("ask", "read-only"):
        return f"no policy {policy!r}; choose settings, ask or read-only"
    if "MCP_BRIDGE_CONFIG" in os.environ:
        return f"the policy {policy!r} and a settings file exclude each other; choose one"
    os.environ["MCP_BRIDGE_CONFIG"] = str(file)
    return None


if __name__ == "__main__":
    enter_environment()
    from bridge.cli.main import main

    wrong = choose()
    sys.exit(f"mcp-code-bridge: {wrong}" if wrong else main())
