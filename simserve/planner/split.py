"""Texts with several values: the commas that part them, and those that belong to a value."""

from __future__ import annotations


def split_values(text: str) -> list[str]:
    """Return the parts between the commas that stand outside brackets and quotes, without the blanks around them."""
    parts: list[str] = []
    depth, quote, start = 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in (*parts, text[start:])]
