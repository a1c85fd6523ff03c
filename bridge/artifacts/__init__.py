"""The artifacts of runs: files, whole outputs, pictures. Blocks: call it in threads.

`bridge.store` has the entries in its database and the contents in its files.
"""
