"""The picture of a run in the documents needs nothing but itself."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from scripts import recording

MAX_BYTES = 60 * 1024


def test_the_picture_in_the_documents_is_small_and_fetches_nothing() -> None:
    picture = recording.PICTURE.read_bytes()
    assert len(picture) <= MAX_BYTES
    assert set(re.findall(rb"https?://[^\s\"]+", picture)) == {b"http://www.w3.org/2000/svg"}
    assert not re.search(rb"@import|@font-face|<script|<image", picture)
    ElementTree.fromstring(picture)
