"""A certificate for tests: its own authority, and good for a server and a client."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certify(directory: Path, name: str, alternative: str) -> tuple[Path, Path]:
    """Write a certificate and its key; `alternative` is such as "IP:127.0.0.1"."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
