"""Two results side by side as people hold them: in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.planner import diff

if TYPE_CHECKING:
    pass


class Diff(diff.Diff):
    """Two results side by side: ``.summary``, and itself as a page in a notebook."""

    def _repr_html_(self) -> str:
        from simserve.report.diff import diff_html

        return diff_html(self)
