"""Writes and reads PNG pictures with the standard library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

Colour = tuple[int, int, int]

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


@dataclass(frozen=True)
class Pixels:
    """A decoded picture: rows of colours without transparency."""

    width: int
    height: int
    rows: list[list[Colour]]

    def count(self, colour: Colour, near: int = 0) -> int:
        """Return the number of pixels within `near` of a colour in each channel."""
        return sum(
            all(abs(own - wanted) <= near for own, wanted in zip(pixel, colour, strict=True))
            for row in self.rows
            for pixel in row
        )

    def colours(self) -> int:
        return len({pixel for row in self.rows for pixel in row})


def write_png(width: int, height: int, pixel: Callable[[int, int], Colour]) -> bytes:
    rows = b"".join(
        b"\0" + b"".join(bytes(pixel(x, y)) for x in range(width)) for y in range(height)
    )
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def read_png(data: bytes) -> Pixels:
    """Decode a non-interlaced picture with 8 bits per sample."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, palette, head = 8, b"", b"", b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        content = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + content) == struct.unpack(">I", data[at + 8 + length :][:4])[0]
        at += 12 + length
        head = content if kind == b"IHDR" else head
        palette = content if kind == b"PLTE" else palette
        packed += content if kind == b"IDAT" else b""
    width, height, depth, kind_of_colour, _, _, interlaced = struct.unpack(">IIBBBBB", head)
    assert (depth, interlaced) == (8, 0)
    samples = _CHANNELS[kind_of_colour]
    lines = _unfilter(zlib.decompress(packed), width * samples, samples)
    assert len(lines) == height
    rows = [
        [_colour(line[x : x + samples], palette) for x in range(0, len(line), samples)]
        for line in lines
    ]
    return Pixels(width, height, rows)


def _colour(sample: bytes, palette: bytes) -> Colour:
    if palette:
        red, green, blue = palette[3 * sample[0] : 3 * sample[0] + 3]
        return red, green, blue
    if len(sample) < 3:
        return sample[0], sample[0], sample[0]
    return sample[0], sample[1], sample[2]


def _unfilter(data: bytes, length: int, step: int) -> list[bytes]:
    lines: list[bytes] = []
    above = bytes(length)
    for start in range(0, len(data), length + 1):
        kind, line = data[start], bytearray(data[start + 1 : start + 1 + length])
        for x in range(length if kind else 0):
            left = line[x - step] if x >= step else 0
            corner = above[x - step] if x >= step else 0
            line[x] = line[x] + _predict(kind, left, above[x], corner) & 0xFF
        above = bytes(line)
        lines.append(above)
    return lines


def _predict(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        guess = left + up - corner
        return min((left, up, corner), key=lambda each: abs(guess - each))
    return (0, left, up, (left + up) // 2)[kind]
