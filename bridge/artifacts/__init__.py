"""What runs leave and somebody may want later: files, whole outputs, pictures.

Owns the store: content-addressed files below the state directory, who may have them, for how long
and how much. Everything here blocks, and is for threads, but for what says otherwise.
"""

from bridge.artifacts.store import ArtifactStore, ArtifactWriter, RunArtifacts

__all__ = ["ArtifactStore", "ArtifactWriter", "RunArtifacts"]
