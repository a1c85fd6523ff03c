"""Backends without a container engine: bubblewrap, Landlock and Seatbelt.

Each `*backend` module describes its machine and puts sandboxes together; `sandbox` runs one.
`command` (what bubblewrap is given) and `landlock` are pure; `stage` is the code that runs inside,
ahead of the program; `monitor` and `watchdog` are processes outside.
"""
