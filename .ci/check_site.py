"""Check a built site of the docs: there is a page, and no page fetches anything from another machine."""

import re
import sys
from pathlib import Path

FETCHED = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="?https?://[^" >]*\.(?:js|css|png|svg|woff2?)')


def main(site: Path) -> int:
    """Return 1, and name the pages, where `site` is empty or a page of it fetches from elsewhere."""
    pages = sorted(site.rglob("*.html"))
    fetching = [page for page in pages if FETCHED.search(page.read_text(encoding="utf-8"))]
    for page in fetching:
        print(f"{page}: fetches something from another machine", file=sys.stderr)
    if not pages:
        print(f"{site}: no page was built", file=sys.stderr)
    return 1 if fetching or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
