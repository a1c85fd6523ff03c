"""Packages for programs: requests, permissions, resolution, download and storage.

The host executes nothing of a package: it refuses source distributions, and only unpacks wheels.
"""
