"""Decoding of text files, whichever editor saved them."""

from __future__ import annotations

import codecs


def decoded_text(content: bytes) -> str:
    """Return a text file's characters: UTF-8, or UTF-16 where a byte order mark says so; without that mark.

    Editors of Windows write both. Raises UnicodeDecodeError for other bytes.
    """
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig")
