"""What runs leave for later: files, whole outputs, pictures.

Owns who may have them, for how long and how much; the entries are in the database of
`bridge.store`, and the contents in its files. Everything here blocks, and is for threads, but for
what says otherwise.
"""

from bridge.artifacts.parts import Content, Part, Reading, parse_part, read_part
from bridge.artifacts.store import ArtifactStore, store_for
from bridge.artifacts.writer import ArtifactWriter, RunArtifacts

__all__ = [
    "ArtifactStore",
    "ArtifactWriter",
    "Content",
    "Part",
    "Reading",
    "RunArtifacts",
    "parse_part",
    "read_part",
    "store_for",
]
