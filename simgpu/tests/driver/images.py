"""Code images made by hand, as compilers lay them out: PTX, a cubin (ELF), a fat binary of both."""

from __future__ import annotations

import struct

PTX = """// a comment with .entry nothing( in it
.version 8.5
.target sm_{target}
.address_size 64
.global .align 4 .b8 counter[400];
.const .align 8 .u64 limits[2] = {{ 1, 2 }};
.global .attribute(.managed) .align 4 .u32 shared_count;
.func (.param .b32 result) helper(.param .b64 x) {{ ret; }}
.visible .entry {name}(
	.param .f32 a,
	.param .u64 x,
	.param .align 8 .b8 options[56],
	.param .u8 last
)
.maxntid 256, 2, 1
{{
	.shared .align 4 .b8 tile[512];
	{{ .reg .pred %p<2>; }}
	ret;
}}
.visible .entry second() {{ ret; }}
"""


def ptx(target: int = 80, name: str = "first") -> bytes:
    return PTX.format(target=target, name=name).encode()


def attribute(kind: int, payload: bytes) -> bytes:
    """One of an info section, with a size."""
    return struct.pack("<BBH", 4, kind, len(payload)) + payload


def parameter(index: int, offset: int, size: int) -> bytes:
    return attribute(0x17, struct.pack("<IHHI", 0, index, offset, size << 18))


def cubin(architecture: int = 90, kernel: str = "from_elf") -> bytes:
    """A kernel with two parameters, 40 registers and 256 bytes of its own shared memory; a variable with initial
    bytes. Architectures from 90 on have 1,024 bytes of the system's in each block's shared memory."""
    reserved = 1024 if architecture >= 90 else 0
    sections = [
        ("", 0, b"", 0, 0),
        (".shstrtab", 3, b"", 0, 0),
        (".strtab", 3, f"\0{kernel}\0table\0".encode(), 0, 0),
        (".symtab", 2, b"", 2, 0),
        (".nv.info", 0x70000000, attribute(0x2F, struct.pack("<II", 1, 40)), 3, 0),
        (f".nv.info.{kernel}", 0x70000000, parameter(1, 8, 4) + parameter(0, 0, 8), 3, 6),
        (f".text.{kernel}", 1, bytes(128), 3, 0),
        (".nv.global.init", 1, b"abcdefgh", 0, 0),
        (f".nv.shared.{kernel}", 8, bytes(0), 0, 6),
    ]
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 1, 0x12, 0x10, 6, 0, 128)
    symbols += struct.pack("<IBBHQQ", 2 + len(kernel), 0x11, 0, 7, 0, 8)
    names = b"".join(name.encode() + b"\0" for name, *_ in sections)
    body, headers, at = b"", b"", 64
    name_at = 0
    for name, kind, data, link, info in sections:
        data = names if name == ".shstrtab" else symbols if name == ".symtab" else data
        size = reserved + 256 if kind == 8 else len(data)
        body += data + bytes(-len(data) % 8)
        headers += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, at, size, link, info, 8, 24)
        at += len(data) + (-len(data) % 8)
        name_at += len(name) + 1
    version = 8
    ident = b"\x7fELF" + bytes([2, 1, 1, 0x41, version]) + bytes(7)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at, architecture << 8, 64, 0, 0, 64, len(sections), 1
    )
    return header + body + headers


def fat(*entries: tuple[int, bytes]) -> bytes:
    """(architecture, PTX or cubin), …"""
    out = b""
    for architecture, code in entries:
        kind = 2 if code.startswith(b"\x7fELF") else 1
        code += bytes(8 - len(code) % 8)
        out += struct.pack(
            "<HHIQIIHHIIIQQQ",
            *(kind, 0x101, 64, len(code), 0, 0, 0, 8, architecture, 0, 0, 0, 0, 0),
        )
        out += code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(out)) + out
