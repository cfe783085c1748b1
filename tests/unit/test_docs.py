"""The documents match the program: every command in them is valid, and so is the site built from them."""

from __future__ import annotations

import argparse
import configparser
import contextlib
import fnmatch
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from node.cli import COMMANDS, command_of
from node.config import NodeConfig
from node.parsing import Parser, described
from roles.spec import RunSpec

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/contribute.md",
    "docs/operate.md",
    "docs/attacks.md",
    "docs/detection.md",
    "docs/checks.md",
    "docs/protocol.md",
    "docs/reliability.md",
    "docs/shardcast.md",
    "docs/tasks.md",
    "docs/training.md",
    "ARCHITECTURE.md",
)
PROGRAM = "intellect-node"
_FENCED = re.compile(r"^( *)```[a-z]*\n(.*?)^\1```", re.M | re.S)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_PLACEHOLDERS = {"N": "1", "FOLDER": "folder", "WORD": "word"}
ACTIONS = ("new", "show", "create", "link", "bash", "zsh", "fish")
SHELL = (">", "|", "&&", "&")
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each of our commands in a page: lines of code blocks, and text in back-quotes."""
    blocks = [found[2] for found in _FENCED.finditer(text)]
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    spans = [" ".join(found[1].split()) for found in _INLINE.finditer(_FENCED.sub("", text))]
    for line in (*lines, *spans):
        with contextlib.suppress(ValueError):  # prose with an apostrophe
            words = list(itertools.takewhile(lambda word: word not in SHELL, shlex.split(line, comments=True)))
            while words and re.match(r"^[A-Z_]+=", words[0]):
                words = words[1:]
            if words and Path(words[0]).name == PROGRAM:
                yield words[1:]
            elif words and words[0] == "scripts/testnet":
                yield ["testnet", *words[1:]]
            elif (
                line in spans
                and len(words) > 1
                and words[0] in COMMANDS
                and (words[1] in ACTIONS or words[1].startswith("-"))
            ):
                yield words  # `keys show --key FILE`, said without the program's name


def all_commands() -> list[tuple[str, list[str]]]:
    """Every command of every page, once."""
    found = {(page, tuple(words)) for page in PAGES for words in commands_in((ROOT / page).read_text())}
    return [(page, list(words)) for page, words in sorted(found)]


def parser_for(words: list[str]) -> tuple[Parser | None, list[str]]:
    """The parser that a command reaches, and the arguments for it."""
    if words and words[0] in COMMANDS:
        return described(command_of(words[0])), words[1:]
    return described(command_of("node")), words


@pytest.mark.parametrize(
    ("page", "words"), all_commands(), ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
def test_documents__every_command_is_one_the_program_takes(
    page: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if words in ([], ["--version"], ["--help"], ["help"]) or words[-1] == "..":
        return
    parser, rest = parser_for([_PLACEHOLDERS.get(word, word) for word in words])
    assert parser is not None
    assert rest or words[0] in COMMANDS, f"{page}: no such command"
    unknown: list[str] = []
    try:
        unknown = argparse.ArgumentParser.parse_known_args(parser, rest)[1]
        code = 0
    except SystemExit as stop:  # --help ends so too
        code = int(str(stop.code))
    assert (code, unknown) == (0, []), f"{page}: {PROGRAM} {' '.join(words)}: {capsys.readouterr().err}"


def test_documents__hold_commands_at_all() -> None:
    pages = [page for page, _ in all_commands()]
    assert {"README.md", "docs/contribute.md", "docs/operate.md"} <= set(pages)
    assert len(pages) > 15


def test_readme__scripts_it_names_can_be_run() -> None:
    named = {name for page in PAGES for name in re.findall(r"\bscripts/[a-z_]+\b", (ROOT / page).read_text())}
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()]
    assert missing == []
    shells = [ROOT / name for name in named if (ROOT / name).exists()]
    assert [path for path in shells if not os.access(path, os.X_OK)] == []
    for path in (*shells, ROOT / ".ci" / "run", ROOT / "scripts" / "environment.sh"):
        subprocess.run(["bash", "-n", path], check=True, timeout=20)


def test_site__is_built_of_the_same_files_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list((ROOT / "docs").rglob("*.md"))
    built = {path.parent.name for path in tmp_path.rglob("index.html")}
    assert [page.stem for page in pages if page.stem not in built] == []
    home = (tmp_path / "index.html").read_text()
    assert "Decentralised reinforcement learning" in home
    local = [name for name in re.findall(r'\b(?:src|srcset)="([^"]+)"', home) if "://" not in name]
    assert [name for name in local if not (tmp_path / name).exists()] == []
    assert not re.search(
        r'(src|href)="https?://(?!squidfunk|github)[^"]*\.(js|css|woff2?)"', home
    )  # nothing from elsewhere


def fields_of(model: type[BaseModel]) -> Iterator[str]:
    """The names of a model's fields, and of the models in them."""
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from fields_of(inner)


@pytest.mark.parametrize("model", [NodeConfig, RunSpec])
def test_documents__name_every_setting_of_a_node_and_of_a_run(model: type[BaseModel]) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    filled_in = {"kind", "chain_id", "code_hash", "deployment_block_hash"}
    names = {name for name in fields_of(model) if name not in filled_in}
    known = {name for name in names if re.search(rf"\b{name}\b|--{name.replace('_', '-')}\b", text)}
    assert names - known == set()


def drafts_in(page: str) -> Iterator[dict[str, dict[str, object]]]:
    """The parts of a draft in a page: its blocks of TOML."""
    for found in _FENCED.finditer((ROOT / page).read_text()):
        with contextlib.suppress(tomllib.TOMLDecodeError):
            yield tomllib.loads(textwrap.dedent(found[2]))


@pytest.mark.parametrize(
    ("page", "tables"),
    [
        ("docs/training.md", {"sampling", "training", "epoch"}),
        ("docs/checks.md", {"checks"}),
        ("docs/operate.md", {"broadcast", "rewards", "terms"}),
    ],
)
def test_documents__the_defaults_they_give_are_the_specs(page: str, tables: set[str]) -> None:
    given = [(table, draft[table]) for draft in drafts_in(page) for table in tables & draft.keys()]
    assert {table for table, _ in given} == tables
    for table, values in given:
        for name, value in values.items():
            default = getattr(RunSpec.model_fields[table].default, name)
            if default is not None:  # checks.joined, which no run has by itself
                plain = default.model_dump() if isinstance(default, BaseModel) else default
                assert value == plain, f"{page}: {table}.{name}"


def test_documents__every_test_they_name_exists() -> None:
    pages = [ROOT / page for page in PAGES] + sorted((ROOT / "docs" / "adr").glob("*.md"))
    named = {name for page in pages for name in re.findall(r"`(test_\w+[a-z0-9])`", page.read_text())}
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 200
    assert sorted(name for name in named if f"def {name}(" not in text) == []


# -- deployment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_unit__is_well_formed_and_restarts_what_can_be_helped(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == PROGRAM
    parser, rest = parser_for(words)
    assert parser is not None
    assert argparse.ArgumentParser.parse_known_args(parser, rest)[1] == []
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2 3")
    assert int(service["LimitNOFILE"]) >= 8192
    assert service["NoNewPrivileges"] == "yes"


def test_dockerfile__builds_from_the_wheel_as_nobody_special() -> None:
    """It cannot be built where there is no Docker, so its instructions are checked instead."""
    text = re.sub(r"\\\n", " ", (ROOT / "deploy" / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = set("FROM ARG COPY RUN ENV USER WORKDIR VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD".split())
    assert {line.split()[0] for line in lines} <= known
    stages = [line for line in lines if line.startswith("FROM ")]
    assert all(re.match(r"FROM python:3\.1[123]-slim-\w+", stage) for stage in stages)
    assert 'ENTRYPOINT ["intellect-node"]' in lines
    assert "STOPSIGNAL SIGTERM" in lines
    last = lines[lines.index(stages[-1]) :]
    assert any(line.startswith("USER ") and line != "USER root" for line in last)
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert [name for name in copied if "dist/" not in name and not (ROOT / name).exists()] == []


def test_package__holds_every_file_the_program_reads() -> None:
    """Files beside the modules, as selected by the patterns for the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    tracked = subprocess.run(
        ["git", "ls-files", "node", "dht", "roles", "ledger"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    ).stdout.split()
    files = [Path(name) for name in tracked if not name.endswith(".py")]
    assert [path for path in files if not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns)] == []


def test_attacks__each_answer_has_a_test_that_exists() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "attacks.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| attack ")
    ]
    sources = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    text = "\n".join(sources.values())
    files = {str(path.relative_to(ROOT / "tests")) for path in sources}

    def exists(name: str) -> bool:
        stem = name.removesuffix("..").rstrip("_")
        return name in files if name.endswith(".py") else f"def {stem}" in text

    assert len(rows) > 40
    assert [row[0] for row in rows if len(row) != 3 or not re.findall(r"`([^`]+)`", row[2])] == []
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row[2])]
    assert [name for name in named if not exists(name)] == []
