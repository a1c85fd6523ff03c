"""What runs leave and somebody may want later: files, whole outputs, pictures.

Owns the store: content-addressed files below the state directory, who may have them, for how long
and how much. Everything here blocks, and is for threads, but for what says otherwise.
"""

from bridge.artifacts.content import Content
from bridge.artifacts.ranges import Part, parse_part
from bridge.artifacts.reading import Reading, read_part
from bridge.artifacts.store import ArtifactStore, store_for
from bridge.artifacts.writing import ArtifactWriter, RunArtifacts

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
