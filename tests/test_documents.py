"""Reading YAML and JSON strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.documents import MAX_DOCUMENT_BYTES, parse_yaml, read_mapping, read_text, yaml_text
from simserve.errors import InputError, ScenarioError


def written(folder: Path, name: str, text: str) -> Path:
    """Return a file with a text in it."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_json_hold_the_same(tmp_path: Path) -> None:
    """A mapping reads the same from both."""
    from_yaml = read_mapping(written(tmp_path, "a.yaml", "rate: 5.5\nlengths: {min: 1, max: 20}\n"))
    from_json = read_mapping(written(tmp_path, "a.json", '{"rate": 5.5, "lengths": {"min": 1, "max": 20}}'))

    assert from_yaml == from_json == {"rate": 5.5, "lengths": {"min": 1, "max": 20}}


@pytest.mark.parametrize(("text", "value"), [("1e9", 1e9), ("2.5e-3", 2.5e-3), ("-1E+4", -1e4)])
def test_exponents_without_a_point_are_numbers(text: str, value: object) -> None:
    """YAML 1.1 reads ``1e9`` as a text; here it is a number."""
    assert parse_yaml(f"key: {text}") == {"key": value}


@pytest.mark.parametrize("text", ["1e9x", "3e5b2c1", "1e9-2"])
def test_a_name_that_begins_like_an_exponent_is_a_text(text: str) -> None:
    """A hash or a version may begin with digits and an e."""
    assert parse_yaml(f"key: {text}") == {"key": text}


@pytest.mark.parametrize("text", ["1:5", "10:00", "1:30.5", "8000:80", "0100", "-010"])
def test_numbers_of_base_60_and_8_are_texts(text: str) -> None:
    """YAML 1.1 reads ``1:5`` as 65 and ``0100`` as 64, YAML 1.2 neither: a range, a time, ports, a padded number."""
    assert parse_yaml(f"key: {text}") == {"key": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0.5", 0.5),
        ("-.5e+3", -500.0),
        ("+1.25", 1.25),
    ],
)
def test_other_numbers_stay_numbers(text: str, value: float) -> None:
    """As YAML 1.1 reads them."""
    found = parse_yaml(f"key: {text}")["key"]

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["1e9", "3e5", "1E+4", ".5e3", "1:5", "0100", "0x1F", "no", "~", "1.5", "plain", "2026-11-29"]
)
def test_what_is_written_reads_as_the_same(text: str) -> None:
    """A text that looks like a number, such as a scenario named after ``1e9.yaml``, stays a text."""
    value = {"name": text, "numbers": [1e9, 1e20, 0.5, 100, -0.5], "nested": {text: [text]}}

    assert parse_yaml(yaml_text(value)) == value


@pytest.mark.parametrize(
    ("text", "lines"), [("rate: 1\nname: x\nrate: 2\n", "1 and 3"), ("a:\n  b: 1\n  b: 2\n", "2 and 3")]
)
def test_a_key_twice_in_yaml(text: str, lines: str, tmp_path: Path) -> None:
    """Refused with both lines, at any depth."""
    path = written(tmp_path, "s.yaml", text)

    with pytest.raises(ScenarioError, match=f"stands twice, in lines {lines}; keep one of them") as error:
        read_mapping(path, ScenarioError)

    assert error.value.file == str(path)


def test_a_key_twice_in_json(tmp_path: Path) -> None:
    """Refused too, though JSON does not give the line."""
    with pytest.raises(InputError, match="rate: stands twice"):
        read_mapping(written(tmp_path, "s.json", '{"rate": 1, "rate": 2}'))


def test_anchors_and_merges_work() -> None:
    """A merged mapping may be overridden; that is not the same key twice."""
    merged = parse_yaml("base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n")

    assert merged["other"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.yaml", "name: [1, 2\nrate: 3\n", "line 2, column .: not valid YAML"),
        ("s.yaml", "a: b: c\n", "line 1, column 5: not valid YAML"),
        ("s.yaml", "a: \x07\n", "not valid YAML"),
        ("s.yaml", "? [a]\n: 1\n", "a key must be a plain value"),
        ("s.yaml", "- 1\n- 2\n", "must hold a mapping of keys to values"),
        ("s.yaml", "", "is empty"),
        ("s.yaml", "# nothing\n", "is empty"),
        ("s.json", " \n", "is empty"),
        ("s.yaml", "a: 1\n---\nb: 2\n", "line 2, column 1: begins a second document; keep one in a file"),
        ("s.yaml", "a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("s.json", '{"a": 1,}', "line 1, column [89]: not valid JSON"),
        ("s.json", "[1]", "must hold a mapping of keys to values"),
    ],
)
def test_what_is_not_a_document(name: str, text: str, message: str, tmp_path: Path) -> None:
    """One line with the file and, where there is one, the place."""
    path = written(tmp_path, name, text)

    with pytest.raises(InputError, match=message) as error:
        read_mapping(path)

    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["deployment:\n\treplicas: 1\n", "a:\n  b: 1\n\tc: 2\n", "a: [1,\n\t2]\nb:\n\t- 3\n"])
def test_a_tab_that_indents_is_named(text: str) -> None:
    """Editors show it as spaces: the error says what it is, and where."""
    with pytest.raises(InputError, match=r"line \d+, column \d+: is indented with a tab; YAML takes spaces"):
        parse_yaml(text)


def test_a_tab_elsewhere_is_no_reason() -> None:
    """A tab after a value is white space, and a line without one has its own error."""
    assert parse_yaml("a:\t1\t# b\n") == {"a": 1}
    with pytest.raises(InputError, match="not valid YAML"):
        parse_yaml("a: '\t'\nb: @\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Named."""
    with pytest.raises(InputError, match=r"missing\.yaml: no such file"):
        read_text(tmp_path / "missing.yaml")


def test_a_folder(tmp_path: Path) -> None:
    """Not a file."""
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_text(tmp_path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Not UTF-8."""
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_text(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "a: " + "[" * 100_000),
        ("s.yaml", "a: " + "[" * 101 + "]" * 101),
        ("s.yaml", "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 200))),
        ("s.json", '{"a": ' + "[" * 100_000),
        ("s.json", '{"a": ' * 101 + "1" + "}" * 101),
    ],
)
def test_deep_nesting_is_refused(name: str, text: str, tmp_path: Path) -> None:
    """Before it is parsed: a parser that recurses would crash."""
    with pytest.raises(InputError, match="is nested more than 100 levels deep"):
        read_mapping(written(tmp_path, name, text))


def test_brackets_inside_a_text_are_no_nesting(tmp_path: Path) -> None:
    """Only structure counts."""
    text = '\\"' + "[" * 200

    assert read_mapping(written(tmp_path, "s.json", f'{{"a": "{text}"}}'))["a"].endswith("[")
    assert parse_yaml(f'a: "{text}"')["a"].endswith("[")


@pytest.mark.parametrize("last", ["*a9", "[*a9, *a9]"])
def test_aliases_that_expand_without_end_are_refused(last: str) -> None:
    """Nine lists of ten times the list before: a thousand million nodes in ten lines."""
    bomb = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))

    with pytest.raises(InputError, match="aliases stand for more than 100,000 values"):
        parse_yaml(f"{bomb}last: {last}\n")


def test_an_alias_to_what_holds_it_is_refused() -> None:
    """A list that contains itself has no end."""
    with pytest.raises(InputError, match="line 1, column 8: stands for the value that it is part of"):
        parse_yaml("a: &a [*a]")


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.json", '{"a": ' + "1" * 5000 + "}"), ("s.yaml", "a: " + "1" * 5000), ("s.yaml", "a: 2026-99-99")],
)
def test_a_value_python_cannot_hold_is_one_line(name: str, text: str, tmp_path: Path) -> None:
    """Digits without end, a date that is none."""
    with pytest.raises(InputError, match="not valid"):
        read_mapping(written(tmp_path, name, text))


def test_a_device_is_not_read() -> None:
    """It has no end."""
    with pytest.raises(InputError, match="/dev/zero: is a device, not a file"):
        read_text(Path("/dev/zero"))


def test_a_document_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """16 MB; one byte more is refused."""
    file = tmp_path / "large.yaml"
    file.write_bytes(b"#" * MAX_DOCUMENT_BYTES)
    assert len(read_text(file)) == MAX_DOCUMENT_BYTES

    with file.open("ab") as opened:
        opened.write(b"#")

    with pytest.raises(InputError, match=r"large\.yaml: is larger than 16 MB, the most that is read"):
        read_text(file)
