"""Isolated processes on this machine or on a container engine.

Knows nothing of frames, tools or policy: a sandbox is two byte streams and an exit report. Security
reviewers start with `layers` (each layer, and how it is checked from inside) and `syscalls`, then
read `process.command`, `process.stage`, `process.landlock` and `container.hardening`.
"""
