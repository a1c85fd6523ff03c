"""The artifacts of runs: files, whole outputs, pictures. Blocks: call it in threads.

`bridge.store` has the entries in its database and the contents in its files.
"""

from bridge.artifacts.content import Content as Content
from bridge.artifacts.content import Part as Part
from bridge.artifacts.content import PartialContent as PartialContent
from bridge.artifacts.content import parse_part as parse_part
from bridge.artifacts.content import read_part as read_part
from bridge.artifacts.store import ArtifactStore as ArtifactStore
from bridge.artifacts.store import ArtifactWriter as ArtifactWriter
from bridge.artifacts.store import RunArtifacts as RunArtifacts
from bridge.artifacts.store import store_for as store_for
