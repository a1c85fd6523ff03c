"""What runs leave for later: files, whole outputs, pictures. Blocks: call it in threads.

The entries are in the database of `bridge.store`, and the contents in its files.
"""

from bridge.artifacts.parts import Content as Content
from bridge.artifacts.parts import Part as Part
from bridge.artifacts.parts import PartialContent as PartialContent
from bridge.artifacts.parts import parse_part as parse_part
from bridge.artifacts.parts import read_part as read_part
from bridge.artifacts.store import ArtifactStore as ArtifactStore
from bridge.artifacts.store import store_for as store_for
from bridge.artifacts.writer import ArtifactWriter as ArtifactWriter
from bridge.artifacts.writer import RunArtifacts as RunArtifacts
