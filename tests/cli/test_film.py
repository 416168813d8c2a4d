"""`run --film` and `compare --film`: the files, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Simserve

pytestmark = pytest.mark.usefixtures("page_alone")


def test_run_writes_a_film_and_shows_it_in_the_report(simserve: Simserve, tmp_path: Path) -> None:
    """Without the flag neither file nor section is there."""
    for folder, more in (("with", ["--film"]), ("without", [])):
        words = ["run", "chatbot", "--set", "workload.num_requests=120", "--quiet", "--out", str(tmp_path / folder)]
        done = simserve(*words, *more)

        assert done.code in (0, 99), done.stderr
        assert (tmp_path / folder / "film.html").is_file() == bool(more)
        page = (tmp_path / folder / "report.html").read_text()
        assert ("<h2>The film</h2>" in page) == bool(more)


@pytest.mark.parametrize("more", [["--check"], ["--reference"]])
def test_run_refuses_a_film_of_nothing(simserve: Simserve, more: list[str]) -> None:
    """Where no step is kept."""
    done = simserve("run", "chatbot", "--film", *more)

    assert done.code == 2
    assert "--film" in done.error_line


def test_compare_writes_a_film_of_both(simserve: Simserve, tmp_path: Path) -> None:
    """One scene each, in the order of the answer."""
    file = tmp_path / "film.html"
    words = ["compare", "chatbot", "--set", "workload.num_requests=100", "--replications", "2", "--film", str(file)]
    done = simserve(*words, "--with", "few: deployment.engine.max_num_seqs=4", "--quiet")

    assert done.code == 0, done.stderr
    found = re.search(r'application/json">(.*?)</script>', file.read_text(), re.DOTALL)
    assert found is not None
    assert [scene["name"] for scene in json.loads(found[1])["scenes"]] == ["as it is", "few"]


def test_a_film_of_independent_requests_is_refused(simserve: Simserve) -> None:
    """They are not on one clock."""
    done = simserve("compare", "chatbot", "--with", "a: deployment.replicas=2", "--film", "x.html", "--independent")

    assert done.code == 2
    assert "--film" in done.error_line
