"""Draw the pictures of the README: ``python docs/draw_pictures.py`` runs simserve and photographs what it shows.

Needs ``simserve[explore]``, playwright, and a Chromium on PATH.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

_FOLDER = Path(__file__).parent / "pictures"
_COLORS = 128
_VIEW = {"width": 1180, "height": 1000}
_MARGIN = 40
"""Pixels between the last picture of the report that is shown and the heading that is not."""


def main() -> None:
    """Write the pictures."""
    _FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        out = Path(folder) / "chat"
        subprocess.run([sys.executable, "-m", "simserve", "run", "chatbot", "--out", str(out)], check=True)
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=_VIEW, device_scale_factor=1.0, color_scheme="light")
        page.goto((out / "report.html").as_uri())
        below = page.get_by_role("heading", name="The run over time").bounding_box()
        assert below is not None
        _save(page, "report.png", {"x": 0, "y": 0, "width": _VIEW["width"], "height": int(below["y"]) - _MARGIN})
        _explore(page)
        browser.close()


def _explore(page: Any) -> None:
    """Photograph a stop of the tour, and the simulator with a second configuration: FP8 weights."""
    command = [sys.executable, "-m", "simserve", "explore", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            address = server.stderr.readline().split()[1]
            page.set_viewport_size({"width": 1440, "height": 1000})
            page.goto(f"{address}#tour?stop=batching")
            page.get_by_role("button", name="Show the answer").click()
            page.wait_for_selector(".reveal h3")
            _save(page, "tour.png", {"x": 0, "y": 0, "width": 1440, "height": 900})
            page.goto(f"{address}#simulator?b=1&b.quantization=fp8")
            page.wait_for_function(
                "() => [...document.querySelectorAll('.answer')].filter((each) => each.dataset.loads > 0).length === 2"
            )
            _save(page, "explore.png", {"x": 0, "y": 0, "width": 1440, "height": 1000})
        finally:
            server.terminate()


def _save(page: Any, name: str, clip: dict[str, int]) -> None:
    """Write a part of the page in few colours, which is what a drawing has."""
    shot = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB")
    shot.quantize(_COLORS).save(_FOLDER / name, optimize=True)


if __name__ == "__main__":
    main()
