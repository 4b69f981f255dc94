"""Writes the images that the runtime's decoders are tested with, and what Pillow makes of them.

Usage: images.py DIRECTORY. Needs numpy and pillow (13.0.0 with libjpeg-turbo 3.2.0 wrote the files that are kept).
"""

import io
import struct
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 13, 19
DIRECTORY = Path(sys.argv[1])
LINES = []


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def keep(name, data):
    """Keeps a stream, with hashes of its pixels as RGB and as gray."""
    image = Image.open(io.BytesIO(data))
    hashes = [f"{fnv(np.array(image.convert(mode)).tobytes()):016x}" for mode in ("RGB", "L")]
    (DIRECTORY / name).write_bytes(data)
    LINES.append(" ".join([name, str(image.height), str(image.width), *hashes]))


def encoded(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def pixels(channels, height=HEIGHT, width=WIDTH):
    """A smooth image with some noise."""
    random = np.random.RandomState(channels)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) * np.cos(y / (4 + c)) * 110 + 128 for c in range(channels)]
    return np.clip(np.stack(waves, -1) + random.randn(height, width, channels) * 9, 0, 255).astype(np.uint8)


def bmp(width, height, bits, compression, data, masks=b"", palette=b""):
    at = 54 + len(masks) + len(palette)
    head = struct.pack("<2sIHHI", b"BM", at + len(data), 0, 0, at)
    size = (40, width, height, 1, bits, compression, len(data), 1, 1, len(palette) // 4, 0)
    return head + struct.pack("<IiiHHIIiiII", *size) + masks + palette + data


RGB, GRAY = Image.fromarray(pixels(3)), Image.fromarray(pixels(1)[:, :, 0])
RGBA, GRAY_ALPHA = Image.fromarray(pixels(4), "RGBA"), Image.fromarray(pixels(2), "LA")
CMYK, BITMAP = Image.fromarray(pixels(4), "CMYK"), GRAY.convert("1")
PALETTES = {colors: RGB.quantize(colors) for colors in (2, 4, 16, 200)}


def jpegs():
    for subsampling, name in enumerate(("444", "422", "420")):
        for progressive in (False, True):
            kind = f"{name}{'_progressive' if progressive else ''}"
            options = {"subsampling": subsampling, "progressive": progressive, "quality": 85}
            keep(f"{kind}.jpg", encoded(RGB, "JPEG", **options))
    for width, height in ((1, 5), (2, 9), (3, 3), (17, 1)):
        keep(f"420_{width}x{height}.jpg", encoded(RGB.crop((0, 0, width, height)), "JPEG"))
    keep("gray.jpg", encoded(GRAY, "JPEG"))
    keep("cmyk.jpg", encoded(CMYK, "JPEG"))
    keep("rgb.jpg", encoded(RGB, "JPEG", keep_rgb=True))
    keep("restart.jpg", encoded(RGB, "JPEG", restart_marker_blocks=1))
    # Factors that no encoder here writes: the same blocks in the same groups, named differently.
    square = Image.fromarray(pixels(3, 32, 32))
    for subsampling, old, new, name in ((1, 0x21, 0x12, "440"), (2, 0x22, 0x41, "411"), (2, 0x22, 0x14, "441")):
        stream = bytearray(encoded(square, "JPEG", subsampling=subsampling))
        at = stream.index(b"\xff\xc0") + 11
        assert stream[at] == old
        stream[at] = new
        keep(f"{name}.jpg", bytes(stream))


def others():
    named = {"rgb": RGB, "rgba": RGBA, "gray": GRAY, "gray_alpha": GRAY_ALPHA, "bitmap": BITMAP}
    named |= {f"palette{colors}": image for colors, image in PALETTES.items()}
    for name, image in named.items():
        keep(f"{name}.png", encoded(image, "PNG"))
        keep(f"{name}.tiff", encoded(image, "TIFF", compression="tiff_lzw"))
        if image.mode not in ("LA", "RGBA"):
            keep(f"{name}.bmp", encoded(image, "BMP"))
    for compression in ("packbits", "tiff_adobe_deflate", "group4"):
        image = BITMAP if compression == "group4" else RGB
        keep(f"{compression}.tiff", encoded(image, "TIFF", compression=compression))
    keep("cmyk.tiff", encoded(CMYK, "TIFF"))
    keep("big.tiff", encoded(PALETTES[200], "TIFF", big_tiff=True))
    for name, image in (("rgb", RGB), ("rgba", RGBA)):
        keep(f"{name}.webp", encoded(image, "WEBP", quality=80))
        keep(f"{name}_lossless.webp", encoded(image, "WEBP", lossless=True))
        keep(f"{name}.jp2", encoded(image, "JPEG2000"))
        keep(f"{name}.j2k", encoded(image, "JPEG2000", no_jp2=True))
    keep("gray.jp2", encoded(GRAY, "JPEG2000"))
    for name, image in (("gray.pgm", GRAY), ("rgb.ppm", RGB), ("bitmap.pbm", BITMAP)):
        keep(name, encoded(image, "PPM"))
    keep("text.pbm", b"P1\n# c\n5 3\n10101 01 0 1 0\n1 1 1 0 0")
    keep("text.pgm", b"P2 3 2 # x\n 7\n0 1 2 3 5 7")
    keep("text.ppm", b"P3\n2 1\n100\n1 50 99 100 0 33\n")
    keep("hundred.pgm", b"P5 4 1 100 \x00\x01\x32\x64")
    keep("thousand.ppm", b"P6 1 2 1000\n" + struct.pack(">6H", 0, 1, 500, 999, 1000, 333))
    random = np.random.RandomState(5)
    words, bytes4 = random.bytes(4 * 6 * 2), random.bytes(4 * 6 * 4)
    keep("555.bmp", bmp(6, 4, 16, 0, words))
    keep("565.bmp", bmp(6, -4, 16, 3, words, struct.pack("<III", 0xF800, 0x7E0, 0x1F)))
    keep("32.bmp", bmp(6, 4, 32, 0, bytes4))
    keep("32_masks.bmp", bmp(6, 4, 32, 3, bytes4, struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)))
    palette = b"".join(random.bytes(3) + b"\0" for _ in range(16))
    runs = (3, 5, 2, 1, 1, 0, 0, 0, 0, 4, 1, 2, 3, 4, 2, 9, 0, 0, 6, 7, 0, 0, 0, 3, 1, 2, 3, 0, 3, 4, 0, 1)
    keep("rle8.bmp", bmp(6, 4, 8, 1, bytes(runs), palette=palette))
    runs = (6, 0x12, 0, 0, 0, 5, 0x12, 0x34, 0x50, 0, 1, 0x70, 0, 0, 6, 0x77, 0, 0, 3, 0x89, 3, 0xAB, 0, 1)
    keep("rle4.bmp", bmp(6, 4, 4, 2, bytes(runs), palette=palette))


DIRECTORY.mkdir(parents=True, exist_ok=True)
jpegs()
others()
(DIRECTORY / "pixels.txt").write_text("\n".join(sorted(LINES)) + "\n")
