"""Containers on other machines, reached over OpenSSH.

`script` has what runs on a host, `link` the connection to one, `host` its state, and `backend`
which host a sandbox gets.
"""
