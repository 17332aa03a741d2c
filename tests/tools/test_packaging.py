"""What is published: metadata, the page on a package index, and what is in the archives."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\(([^)\s]*)\)|<(?:img|a)\s[^>]*(?:src|href)=[\"']([^\"']*)")
CODE = re.compile(r"```.*?```", re.DOTALL)
PINS = {
    requirement.name: Version(next(iter(requirement.specifier)).version)
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#") and (requirement := Requirement(line))
}
BUNDLED = ("story", "story-draft", "adapters")  # the folders of `data` that a wheel has
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
BOUNDED = [*PYPROJECT["project"]["dependencies"], *EXTRAS["notebooks"], *EXTRAS["server"]]


def relative_links(markdown: str) -> list[str]:
    links = [one or other for one, other in LINK.findall(CODE.sub("", markdown))]
    return [link for link in links if "://" not in link]


# --- metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dependency", BOUNDED)
def test_a_dependency_ends_before_the_major_version_after_the_tested_one(dependency: str) -> None:
    requirement = Requirement(dependency)
    tested = PINS[requirement.name]
    assert tested in requirement.specifier
    assert Version(f"{tested.major}.999") in requirement.specifier
    assert Version(f"{tested.major + 1}.0") not in requirement.specifier


# --- the page --------------------------------------------------------------------------------------------------------


def page() -> str:
    """README.md as pyproject.toml says that it is rewritten."""
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    parts = [(ROOT / part["path"]).read_text() if "path" in part else part["text"] for part in hook["fragments"]]
    text = "".join(parts)
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text


def test_no_picture_or_link_of_the_page_is_relative() -> None:
    assert relative_links(README), "in the repository they are"
    assert relative_links(page()) == []
    assert "![" not in page()


# --- archives --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist, built by what builds them everywhere."""
    builder = pytest.importorskip("hatchling.build")
    pytest.importorskip("hatch_fancy_pypi_readme")
    target = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(ROOT)  # a build backend builds what is in the current directory
    try:
        return target / builder.build_wheel(str(target)), target / builder.build_sdist(str(target))
    finally:
        os.chdir(before)


@pytest.mark.slow
def test_the_metadata_that_is_built_has_page_and_licence(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(wheel.read(name))
        (licence,) = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT AND BSD-2-Clause"
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload(decode=True)
    assert isinstance(description, bytes)
    assert description.decode().strip() == page().strip()


@pytest.mark.slow
def test_a_wheel_has_whatever_the_package_is_in_the_repository(archives: tuple[Path, Path]) -> None:
    files = [path.relative_to(ROOT) for path in (ROOT / "nanoinfer").rglob("*") if path.is_file()]
    wanted = {str(path) for path in files if not any(part.startswith((".", "__pycache__")) for part in path.parts)}
    bundled = [path for name in BUNDLED for path in (ROOT / "data" / name).rglob("*") if path.is_file()]
    wanted |= {f"nanoinfer/_bundled/{path.relative_to(ROOT / 'data')}" for path in bundled}
    with zipfile.ZipFile(archives[0]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == wanted


@pytest.mark.slow
def test_an_sdist_has_what_tests_and_notebooks_need(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"LICENSE", "requirements.txt", "data/story/model.safetensors", "notebooks/00_start_here.ipynb"}
    assert wanted | {"nanoinfer/model/kernels/vectors.h", "tests/soak/__main__.py"} <= names


@pytest.mark.slow
def test_an_installed_wheel_serves_the_bundled_model_from_any_directory(
    archives: tuple[Path, Path], tmp_path: Path
) -> None:
    zipfile.ZipFile(archives[0]).extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    code = (
        "import nanoinfer\n"
        "llm = nanoinfer.LLM('story', max_total_tokens=64, kernels='torch', trace=True)\n"
        "params = nanoinfer.SamplingParams(max_new_tokens=4, temperature=0)\n"
        "print(llm.model.path, llm.generate('Once upon a time', params)[0].token_ids)\n"
        "llm.trace.player().save('run.html')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{tmp_path / 'site' / 'nanoinfer' / '_bundled' / 'story'} [")
    assert (tmp_path / "elsewhere" / "run.html").stat().st_size > 10_000
