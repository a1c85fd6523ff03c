"""Which bytes may reach a client as a picture."""

from __future__ import annotations

import struct
import zlib

import pytest

from bridge.runs.collect.picture_formats import MAX_CHUNKS, MAX_SIDE, Picture, examine, repair_png
from tests.png import chunk, write_png

PNG = write_png(5, 4, lambda x, y: (x, y, 0))
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(
    width: int,
    height: int,
    packed: bytes,
    *,
    depth: int = 8,
    colours: int = 2,
    interlaced: int = 0,
    extra: bytes = b"",
) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, interlaced)
    parts = (chunk(b"IHDR", head), extra, chunk(b"IDAT", packed), chunk(b"IEND", b""))
    return SIGNATURE + b"".join(parts)


def jpeg(width: int, height: int) -> bytes:
    size = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\1\1\0\0\x3f\0" + b"picture"
    return b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0" + size + scan + b"\xff\xd9"


def webp(kind: bytes, body: bytes) -> bytes:
    content = b"WEBP" + kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(content)) + content


@pytest.mark.parametrize(
    ("data", "mime_type", "size"),
    [
        (PNG, "image/png", (5, 4)),
        (png(9, 2, zlib.compress(bytes(2 * (1 + 2))), depth=1, colours=0), "image/png", (9, 2)),
        (
            png(
                2,
                1,
                zlib.compress(bytes(3)),
                colours=3,
                extra=chunk(b"PLTE", bytes(6)) + chunk(b"tEXt", b"a\0b"),
            ),
            "image/png",
            (2, 1),
        ),
        # One pixel in the first pass, one in the sixth: a row each.
        (png(2, 1, zlib.compress(bytes(8)), interlaced=1), "image/png", (2, 1)),
        (jpeg(7, 3), "image/jpeg", (7, 3)),
        (b"GIF89a" + struct.pack("<HH", 6, 2) + bytes(3) + b"\x2c\0\x3b", "image/gif", (6, 2)),
        (webp(b"VP8X", bytes(4) + b"\x09\0\0\x04\0\0"), "image/webp", (10, 5)),
        (webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\x08\0\x06\0"), "image/webp", (8, 6)),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 7 | 3 << 14) + bytes(5)), "image/webp", (8, 4)),
    ],
)
def test_pictures_of_four_kinds_are_measured(
    data: bytes, mime_type: str, size: tuple[int, int]
) -> None:
    assert examine(data) == Picture(mime_type=mime_type, width=size[0], height=size[1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SIGNATURE,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        PNG[:-1],
        PNG + b"<script>",
        PNG[:20] + b"\xff" + PNG[21:],
        PNG.replace(b"IDAT", b"IDAX"),
        png(5, 4, zlib.compress(bytes(4 * 16 - 1))),
        png(5, 4, zlib.compress(bytes(4 * 16 + 1))),
        png(5, 4, b"no zlib"),
        png(0, 4, zlib.compress(b"")),
        png(5, 4, zlib.compress(bytes(64)), depth=3),
        png(5, 4, zlib.compress(bytes(64)), interlaced=2),
        png(2, 1, zlib.compress(bytes(3)), colours=3),
        png(MAX_SIDE + 1, 1, zlib.compress(bytes(3 * MAX_SIDE + 4))),
        png(MAX_SIDE, MAX_SIDE, zlib.compress(b"")),
        png(2**31, 2**31, zlib.compress(bytes(10**6))),
        jpeg(7, 3)[:-1],
        jpeg(0, 3),
        jpeg(MAX_SIDE + 1, 3),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff" + b"\xff" * 1000 + b"\xff\xd9",
        b"\xff\xd8\xff\xe0\0\0" + bytes(100) + b"\xff\xd9",
        b"GIF89a" + bytes(20),
        webp(b"VP8 ", bytes(20)),
        webp(b"VP8X", bytes(4) + b"\xff\xff\xff\x04\0\0") + b"x",
        webp(b"ABCD", bytes(20)),
    ],
)
def test_what_is_broken_too_large_or_something_else_is_no_picture(data: bytes) -> None:
    """Services refuse such, and a conversation that has one in it cannot go on."""
    assert examine(data) is None


def test_a_part_that_the_picture_can_do_without_goes_if_its_checksum_is_wrong() -> None:
    packed, profile = zlib.compress(bytes(4 * 16)), chunk(b"iCCP", b"sRGB\0\0x")
    broken = profile[:-1] + bytes([profile[-1] ^ 1])
    data = png(5, 4, packed, extra=broken + chunk(b"tEXt", b"a\0b") + broken)
    assert examine(data) is None
    assert repair_png(data) == png(5, 4, packed, extra=chunk(b"tEXt", b"a\0b"))
    assert examine(repair_png(data)) == Picture(mime_type="image/png", width=5, height=4)
    for whole in (png(5, 4, packed, extra=profile), jpeg(7, 3), b"", SIGNATURE, PNG[:-3]):
        assert repair_png(whole) is whole
    palette = chunk(b"PLTE", bytes(6))
    critical = png(2, 1, zlib.compress(bytes(3)), colours=3, extra=palette[:-1] + b"?")
    assert repair_png(critical) is critical
    assert examine(critical) is None


@pytest.mark.guarantee("event-loop")
def test_one_of_more_parts_than_any_has_is_no_picture() -> None:
    packed = zlib.compress(bytes(4 * 16))
    assert examine(png(5, 4, packed, extra=chunk(b"tEXt", b"") * 1000)) is not None
    assert examine(png(5, 4, packed, extra=chunk(b"tEXt", b"") * MAX_CHUNKS)) is None
    segment = b"\xff\xe0\0\x02"
    start, rest = jpeg(7, 3)[:2], jpeg(7, 3)[2:]
    assert examine(start + segment * 1000 + rest) is not None
    assert examine(start + segment * MAX_CHUNKS + rest) is None


def test_a_small_file_that_unpacks_to_much_is_looked_at_no_further_than_it_says() -> None:
    bomb = png(5, 4, zlib.compress(bytes(8 * 1024 * 1024)))
    assert len(bomb) < 100_000
    assert examine(bomb) is None
