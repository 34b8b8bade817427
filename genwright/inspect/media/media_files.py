"""Small media files, written byte by byte: a tone, silence, moving pictures and a page."""

import io
import math
import struct
import wave


def wav(frequency: int, seconds: float = 1.0, rate: int = 16000) -> bytes:
    """A tone."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        steps = range(int(seconds * rate))
        values = (round(12000 * math.sin(2 * math.pi * frequency * t / rate)) for t in steps)
        sound.writeframes(b"".join(struct.pack("<h", v) for v in values))
    return file.getvalue()


def mp3(frames: int = 39) -> bytes:
    """Silence: frames of MPEG-1 layer III, 128 kbit/s, 44.1 kHz, mono, whose side information and data are zero."""
    header, size = bytes([0xFF, 0xFB, 0x90, 0xC4]), 144 * 128_000 // 44_100
    return (header + bytes(size - len(header))) * frames


def avi(frames: list[bytes], side: int, rate: int = 8) -> bytes:
    """JPEG pictures in an AVI container, which OpenCV, ffmpeg and players read without a codec of their own."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    def listed(kind: bytes, *parts: bytes) -> bytes:
        return chunk(b"LIST", kind + b"".join(parts))

    largest = max(map(len, frames))
    header = struct.pack(
        "<14I", 1_000_000 // rate, largest * rate, 0, 0x10, len(frames), 0, 1, largest, side, side, *[0] * 4
    )
    stream = struct.pack(
        "<4s4sIHHIIIIIIII4H", b"vids", b"MJPG", 0, 0, 0, 0, 1, rate, 0, len(frames), largest, 0, 0, 0, 0, side, side
    )
    form = struct.pack("<IiiHH4sIiiII", 40, side, side, 1, 24, b"MJPG", side * side * 3, 0, 0, 0, 0)
    head = listed(b"hdrl", chunk(b"avih", header), listed(b"strl", chunk(b"strh", stream), chunk(b"strf", form)))
    movie = listed(b"movi", *(chunk(b"00dc", f) for f in frames))
    index, offset = b"", 4
    for frame in frames:
        index += struct.pack("<4sIII", b"00dc", 0x10, offset, len(frame))
        offset += 8 + len(frame) + len(frame) % 2
    return chunk(b"RIFF", b"AVI " + head + movie + chunk(b"idx1", index))


def _box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), kind) + data


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def mp4(frames: list[bytes], side: int, rate: int = 8) -> bytes:
    """JPEG pictures in an MP4 container (ISO 14496-12 and -14, object type 0x6C)."""
    count, duration = len(frames), len(frames) * 1000 // rate
    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    kind = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isommp41")
    data = _box(b"mdat", *frames)
    config = bytes([4, 13, 0x6C, 0x11]) + struct.pack(">I", max(map(len, frames)))[1:] + bytes(8)
    stream = bytes([3, 3 + len(config) + 3, 0, 1, 0]) + config + bytes([6, 1, 2])
    entry = _box(
        b"mp4v",
        *(bytes(6), struct.pack(">H", 1), bytes(16), struct.pack(">HHIIIH", side, side, 72 << 16, 72 << 16, 0, 1)),
        *(bytes(32), struct.pack(">Hh", 24, -1), _full(b"esds", stream)),
    )
    table = _box(
        b"stbl",
        _full(b"stsd", struct.pack(">I", 1), entry),
        _full(b"stts", struct.pack(">3I", 1, count, 1000 // rate)),
        _full(b"stsc", struct.pack(">4I", 1, 1, count, 1)),
        _full(b"stsz", struct.pack(f">{count + 2}I", 0, count, *map(len, frames))),
        _full(b"stco", struct.pack(">2I", 1, len(kind) + 8)),
    )
    here = _box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1)))
    media = _box(
        b"mdia",
        _full(b"mdhd", struct.pack(">4IHH", 0, 0, 1000, duration, 0x55C4, 0)),
        _full(b"hdlr", bytes(4), b"vide", bytes(12), b"video\0"),
        _box(b"minf", _full(b"vmhd", bytes(8), flags=1), here, table),
    )
    track = _full(
        b"tkhd", struct.pack(">5I", 0, 0, 1, 0, duration), bytes(16), matrix,
        struct.pack(">II", side << 16, side << 16), flags=3,
    )  # fmt: skip
    head = _full(
        b"mvhd", struct.pack(">4I", 0, 0, 1000, duration), struct.pack(">IH", 0x10000, 0x100), bytes(10), matrix,
        bytes(24), struct.pack(">I", 2),
    )  # fmt: skip
    return kind + data + _box(b"moov", head, _box(b"trak", track, media))


def pdf(text: str) -> bytes:
    """One page with one line of text."""
    content = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    made_table = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    return made + made_table + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(made))
