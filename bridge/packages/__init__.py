"""Packages for programs: which are asked for, which are allowed, and where they come from.

Owns resolving, fetching, keeping and unpacking wheels. Nothing of a package is executed on the
host: what is not a wheel is refused, and wheels are only taken apart. How a sandbox gets to see
what was unpacked is the engine's and the backends' business.
"""
