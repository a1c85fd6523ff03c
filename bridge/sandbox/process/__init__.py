"""Backends without a container engine: bubblewrap, Landlock and Seatbelt.

Each `*backend` module examines the machine and assembles sandboxes; `sandbox` runs one. `command`
(bubblewrap's options) and `landlock` are pure. `stage` runs inside, before the program; `monitor`
is a process outside.
"""
