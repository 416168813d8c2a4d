"""The page of commands says what the command line declares."""

from __future__ import annotations

from docs.write_commands import PAGE, page


def test_every_option_is_on_the_page() -> None:
    """Written anew with: python docs/write_commands.py."""
    text = PAGE.read_text(encoding="utf-8")

    assert text == page()
    assert "## simserve import manifest\n" in text
    assert "| `SCENARIO` | A scenario file" in text
    assert "| `--gpus [Nx]GPU` |" in text
