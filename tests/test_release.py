"""What the repository offers beside the package: workflows, templates, hooks, and a release that can be rehearsed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import simserve

ROOT = Path(__file__).parents[1]


def test_the_citation_names_the_version_of_the_package():
    """Who cites simserve cites what is installed."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == simserve.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_changelog_opens_with_what_is_unreleased_and_then_this_version():
    """No heading stands twice, as merges of changes from both sides could leave it."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    unreleased = lines[lines.index("## Unreleased") + 1 : lines.index(versions[1])]
    sections = [line for line in unreleased if line.startswith("### ")]

    assert versions[0] == "## Unreleased"
    assert re.fullmatch(rf"## {re.escape(simserve.__version__)} \(\d{{4}}-\d{{2}}-\d{{2}}\)", versions[1])
    assert len(set(versions)) == len(versions)
    assert len(set(sections)) == len(sections)


def test_ci_runs_the_script_that_everyone_can_run():
    """One script says what must hold, on a laptop and in CI."""
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["ci"]["steps"]

    assert "bash .ci/run" in [step.get("run") for step in steps]


def test_the_docs_workflow_checks_what_it_built():
    """The site is built, and looked at."""
    steps = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text())["jobs"]["docs"]["steps"]

    assert [step["run"] for step in steps if "run" in step] == ["make docs", "python3 .ci/check_site.py site"]


def test_hooks_judge_as_lint_does():
    """A commit that passes the hooks passes `make lint`: the same programs of the same environment."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]

    for hook in hooks:
        program, *verb = hook["entry"].removeprefix(".venv/bin/").split()[:2]
        assert " ".join([f"$(BIN)/{program}", *verb]) in lint
    assert len(hooks) == lint.count("$(BIN)/")


@pytest.mark.parametrize("name", ["wrong-answer", "measurement", "idea"])
def test_issue_templates_ask_for_scenario_and_version(name):
    """Without the two, nobody can run what was run."""
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    fields = {field["id"]: field for field in form["body"]}

    assert "simserve --version" in fields["version"]["attributes"]["description"]
    assert fields["version"]["validations"]["required"]
    assert fields["scenario"]["attributes"]["render"] == "yaml"


def test_a_page_that_fetches_from_elsewhere_is_found(tmp_path):
    """The check of the site names the page and fails; without one it passes, and an empty site fails."""

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, ROOT / ".ci/check_site.py", tmp_path], capture_output=True, text=True)

    empty = check()
    (tmp_path / "good.html").write_text(
        '<script src="local.js"></script><a href="https://example.org/a.css">a link</a>'
    )
    good = check()
    (tmp_path / "bad.html").write_text('<script src="https://example.org/a.js"></script>')
    bad = check()

    assert (empty.returncode, good.returncode, bad.returncode) == (1, 0, 1)
    assert "bad.html" in bad.stderr
    assert "good.html" not in bad.stderr


@pytest.mark.slow
def test_a_release_can_be_rehearsed(tmp_path):
    """One command makes wheel and sdist of the version it is given, tries them, and leaves the checkout as it was."""
    clone = tmp_path / "clone"
    cloned = subprocess.run(["git", "clone", "-q", ROOT, clone], capture_output=True, text=True)
    if cloned.returncode:
        pytest.skip(f"no clone of this folder can be made: {cloned.stderr.strip()}")

    released = subprocess.run(
        ["bash", ".ci/release", "9.9.9"],
        cwd=clone,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True).stdout

    assert released.returncode == 0, released.stdout + released.stderr
    assert sorted(file.name for file in (clone / "dist").iterdir()) == [
        "simserve-9.9.9-py3-none-any.whl",
        "simserve-9.9.9.tar.gz",
    ]
    assert changed == ""
