"""Containers on other machines, reached over OpenSSH."""
