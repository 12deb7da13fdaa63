"""The wheel is complete: built, installed into an empty environment, and used from another folder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"),
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="not a checkout"),
    pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="there is no README.md yet"),
]


def done(*command: str | Path, cwd: Path) -> str:
    """Run it without any PYTHONPATH; its standard output."""
    ran = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel; its dependencies are those of the running one."""
    folder = tmp_path_factory.mktemp("venv")
    done(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    done(python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", wheel, cwd=folder)
    site = Path(done(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder).strip())
    # sys.path lines of a .pth file come after the environment's own packages, so the wheel is what is imported.
    (site / "running.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{sysconfig.get_paths()['platlib']}\n")
    return folder / "bin"


def test_rules_and_samples_are_inside_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("rules", "samples"):
        here = {
            f"hicache_doctor/_shipped/{p.relative_to(ROOT)}"
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        assert here <= names, sorted(here - names)[:5]
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"hicache_doctor"}
    assert any(name.endswith("report/templates/report.html.j2") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_tool_analyses_a_sample_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    home = done(installed / "python", "-c", "import hicache_doctor; print(hicache_doctor.__file__)", cwd=tmp_path)
    assert Path(home.strip()).is_relative_to(installed.parent)
    source = "from hicache_doctor.shipped import shipped; print(shipped('samples'))"
    samples = Path(done(installed / "python", "-c", source, cwd=tmp_path).strip())
    assert samples.is_relative_to(installed.parent)
    tool = installed / "hicache-doctor"
    for answer in (a for a in (samples / "crash_dumps").glob("*/expected.json") if (a.parent / "input").is_dir()):
        expected = json.loads(answer.read_text())
        said = json.loads(done(tool, "analyze", answer.parent / "input", "--format", "json", cwd=tmp_path))
        assert {key: said[key] for key in expected} == expected
    done(tool, "analyze", answer.parent / "input", "--format", "html", "-o", "report.html", cwd=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    done(tool, "rules", "check", cwd=tmp_path)
    assert "0.5.13" in done(tool, "kb", "show", "27285", cwd=tmp_path)
