"""Picture formats: recognises and measures PNG, JPEG, GIF and WebP without decoding. Pure.

A model's service refuses a broken picture, and with it the rest of the conversation. So a PNG, the
most frequent format, is checked to its last byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAX_SIDE = 8192  # Pixels of a guest's picture; services refuse larger ones.

_PNG = b"\x89PNG\r\n\x1a\n"
_CHUNK_HEAD = 8
_CHECKSUM = 4

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # A PNG's colour type to the samples of a pixel.

_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}

_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)),
    (0, 1, 1, 2),
)
"""The passes of an interlaced PNG: first column, first row, and the steps across and down."""

MAX_CHUNKS = 20_000
"""Parts of a PNG or JPEG; ten times the number that libpng writes for the largest picture. A guest
can send a million empty parts, which take seconds to read."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture's format and size."""

    mime_type: str
    width: int
    height: int


def mime_of(data: bytes) -> str:
    """Return a picture's MIME type by its first bytes; empty if it is no picture."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


def examine(data: bytes) -> Picture | None:
    """Return a picture's format and size; None if it is invalid or too large.

    It takes some tenths of a second at most, so call it in a thread.
    """
    mime_type = mime_of(data)
    if not mime_type:
        return None
    size = {
        "image/png": _png_size,
        "image/jpeg": _jpeg_size,
        "image/gif": _gif_size,
        "image/webp": _webp_size,
    }[mime_type](data)
    if size is None or not _fits(*size):
        return None
    return Picture(mime_type=mime_type, width=size[0], height=size[1])


def repair_png(data: bytes) -> bytes:
    """Return a PNG without optional chunks whose checksums are wrong.

    Browsers ignore such a chunk, but services refuse the picture.
    """
    if not data.startswith(_PNG):
        return data
    pieces, begin = [], 0
    for at, end in _parts(data):
        # The picture can be shown without this part.
        if data[at + 4] & 0x20 and not _is_sound(data, at, end):
            pieces.append(data[begin:at])
            begin = end + _CHECKSUM
    return b"".join((*pieces, data[begin:])) if pieces else data


def _parts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each part of a PNG begins, and where its checksum begins."""
    at = len(_PNG)
    for _ in range(MAX_CHUNKS):
        end = at + _CHUNK_HEAD + int.from_bytes(data[at : at + 4], "big")
        if end + _CHECKSUM > len(data):
            return
        yield at, end
        at = end + _CHECKSUM


def _is_sound(data: bytes, at: int, end: int) -> bool:
    return zlib.crc32(data[at + 4 : end]) == int.from_bytes(data[end : end + _CHECKSUM], "big")


def _fits(width: int, height: int) -> bool:
    # A reader unpacks a pixel to some four bytes.
    return 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= 32 * 1024 * 1024


def _png_size(data: bytes) -> tuple[int, int] | None:
    chunks = _chunks(data)
    kind, head = next(chunks, (b"", b""))
    if kind != b"IHDR" or len(head) != 13:
        return None
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    depth, colours, interlaced = head[8], head[9], head[12]
    # Checked before unpacking, whose result can have any size.
    if not _fits(width, height) or depth not in _DEPTHS.get(colours, ()) or interlaced > 1:
        return None
    bits = depth * _CHANNELS[colours]
    if not _is_whole(chunks, _unpacked_size(width, height, bits, interlaced == 1), colours == 3):
        return None
    return width, height


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and content of each part of a PNG, up to the first broken one."""
    for at, end in _parts(data):
        kind = data[at + 4 : at + _CHUNK_HEAD]
        # Nothing may follow the last part.
        if not _is_sound(data, at, end) or (kind == b"IEND" and end + _CHECKSUM != len(data)):
            return
        yield kind, data[at + _CHUNK_HEAD : end]


def _is_whole(chunks: Iterator[tuple[bytes, bytes]], expected: int, needs_palette: bool) -> bool:
    unpacking, size, kind, has_palette = zlib.decompressobj(), 0, b"", False
    try:
        for kind, content in chunks:
            has_palette = has_palette or kind == b"PLTE"
            if kind != b"IDAT":
                continue
            left = content
            while left:
                size += len(unpacking.decompress(left, 1024 * 1024))
                left = unpacking.unconsumed_tail
                if size > expected:
                    return False
    except zlib.error:
        return False
    return kind == b"IEND" and size == expected and (has_palette or not needs_palette)


def _unpacked_size(width: int, height: int, bits: int, interlaced: bool) -> int:
    if not interlaced:
        return height * (1 + (width * bits + 7) // 8)
    size = 0
    for left, top, across, down in _PASSES:
        columns, rows = (width - left + across - 1) // across, (height - top + down - 1) // down
        if columns > 0 and rows > 0:
            size += rows * (1 + (columns * bits + 7) // 8)
    return size


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at, size = 2, None
    if not data.rstrip(b"\0").endswith(b"\xff\xd9"):
        return None
    for _ in range(MAX_CHUNKS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        # The markers with the size.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and length >= 7:
            height, width = (int.from_bytes(data[at + n : at + n + 2], "big") for n in (5, 7))
            size = (width, height)
        if marker == 0xDA:
            # The picture's data follows.
            return size
        if length < 2:
            return None
        at += 2 + length
    return None


def _gif_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 14 or not data.endswith(b"\x3b"):
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30 or int.from_bytes(data[4:8], "little") + 8 != len(data):
        return None
    kind, body = data[12:16], data[20:]
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L" and body[0] == 0x2F:
        packed = int.from_bytes(body[1:5], "little")
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(body[n : n + 2], "little") & 0x3FFF for n in (6, 8))
        return width, height
    return None
