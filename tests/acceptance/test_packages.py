"""The wheel and the source distribution: what is in them, and a playbook that runs on nothing but the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from running import ROOT

pytestmark = pytest.mark.acceptance

#: what setuptools adds to the files of a source distribution
ADDED = {"PKG-INFO", "setup.cfg"}
#: of what Git knows, what only those need who work on the project itself
LEFT_OUT = (".gitignore", ".ci/")


def complete(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs it with no trace of this source tree in the environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NOETL_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run(*command: str | Path, cwd: Path) -> str:
    """The same; its standard output."""
    return complete(*command, cwd=cwd).stdout


def tracked() -> set[str]:
    """The files that Git knows and that are still there."""
    if not (ROOT / ".git").exists():
        pytest.skip("compares with the files that Git knows, and this is no checkout")
    listed = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    return {name for name in listed if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, made of what Git knows as by `make dist`; ``again`` has a wheel made of the other one."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel")
    said = complete(*build, "--outdir", folder, source, cwd=folder)
    assert "would be ignored" not in said.stderr, "package-data and packages contradict each other"
    [archive] = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    run(*build[:-2], "--wheel", "--outdir", folder / "again", unpacked, cwd=folder)
    return folder


def wheel_of(folder: Path) -> Path:
    [wheel] = folder.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, int]:
    """Path → checksum of all that is in it."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    inside = {name for name in contents(wheel_of(built)) if ".dist-info/" not in name}
    package = {name for name in tracked() if name.startswith("noetl_celery/")}
    migrations = {f"noetl_celery/{name}" for name in tracked() if name.startswith("migrations/")}
    assert inside == package | migrations


def test_the_source_distribution_has_all_that_git_knows_and_nothing_else(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {entry.name.partition("/")[2] for entry in files if entry.isfile()}
    inside = {name for name in names if ".egg-info/" not in name}
    assert inside - ADDED == {name for name in tracked() if not name.startswith(LEFT_OUT)}


def test_the_source_distribution_builds_the_same_wheel(built: Path) -> None:
    assert contents(wheel_of(built / "again")) == contents(wheel_of(built))


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel in it; what the wheel needs is looked up in ours."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check"),
        *("--no-deps", "--no-index", wheel_of(built)),
        cwd=folder,
    )
    library = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (folder / library / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import noetl_celery; print(noetl_celery.__file__)", cwd=folder)
    assert where.startswith(str(folder)), where
    return folder / "bin"


def test_an_installed_wheel_does_its_work_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    program = installed / "noetl-celery"
    playbook = shutil.copy(ROOT / "playbooks" / "hello.yaml", tmp_path)
    project = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version")]
    assert run(program, "--version", cwd=tmp_path).split() == ["noetl-celery", project[0].split('"')[1]]
    assert "no problems" in run(program, "lint", playbook, cwd=tmp_path)
    script = f"'{program}' db upgrade && '{program}' run '{playbook}' --json"
    printed = run(program, "dev", "--fresh", "-c", "1", "--", "sh", "-c", script, cwd=tmp_path)
    outcome = json.loads(printed.splitlines()[-1])
    assert outcome["status"] == "COMPLETED"
    assert outcome["steps"]["end"]["output"]["count"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["hello.yaml"]
