"""Isolated processes on this machine or on a container engine.

A sandbox is two byte streams and an exit report; frames, tools and policy are elsewhere. Security
reviewers start with `layers` (each layer, and its check from inside) and `syscalls`, then read
`process.command`, `process.stage`, `process.landlock` and `container.hardening`.
"""
