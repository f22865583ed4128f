"""The units: systemd's own checks of them, the installer, and a machine that systemd boots with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachedaemon.config import load
from tests.conftest import PROJECT

SYSTEMD = PROJECT / "systemd"
UNITS = ("cachedaemon.service", "cachedaemon.socket", "cachedaemon@x.service", "cachedaemon@x.socket")
EXPOSURE = 1.5


def _run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def units() -> Iterator[Path]:
    """The units as they are installed, with a program where theirs will be."""
    works = shutil.which("systemd-analyze") and _run("systemd-analyze", "--version").returncode == 0
    if not works or not Path("/lib/systemd/system/basic.target").exists():
        pytest.skip("no systemd-analyze here, or none of systemd's own units")
    with tempfile.TemporaryDirectory(prefix="cd-") as made:
        folder = Path(made)
        (folder / "current/bin").mkdir(parents=True)
        (folder / "current/bin/cachedaemon").symlink_to("/bin/true")
        for unit in SYSTEMD.glob("cachedaemon*.*"):
            text = unit.read_text()
            (folder / unit.name).write_text(text.replace("/opt/cachedaemon", made))
        yield folder


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_against_a_unit(units: Path, unit: str) -> None:
    """It returns 0 for unknown keys too, so what it says is what counts."""
    said = _run("systemd-analyze", "verify", "--man=no", f"./{unit}", cwd=units)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("unit", [one for one in UNITS if one.endswith("service")])
def test_exposure(units: Path, unit: str) -> None:
    threshold = f"--threshold={round(EXPOSURE * 10)}"
    said = _run("systemd-analyze", "security", "--offline=true", threshold, "--no-pager", f"./{unit}", cwd=units)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said.stdout)
    assert found, said.stderr
    assert float(found[1]) <= EXPOSURE
    assert said.returncode == 0


def test_the_template_differs_only_in_names() -> None:
    """What is mended in one is mended in the other."""
    for kind in ("service", "socket"):
        plain = (SYSTEMD / f"cachedaemon.{kind}").read_text()
        template = (SYSTEMD / f"cachedaemon@.{kind}").read_text()
        for text in ("-%i", "@%i", " %i", " --config /etc/cachedaemon/%i.toml"):
            template = template.replace(text, "")
        lines = [
            [line for line in text.splitlines() if not line.startswith(("#", "Environment=XDG_"))]
            for text in (plain, template)
        ]
        assert lines[0] == lines[1]


def test_the_example_configuration_is_one(folder: Path) -> None:
    """With any source; socket and cache are where the units have them."""
    text = (SYSTEMD / "cachedaemon.toml").read_text()
    (folder / "c.toml").write_text(text.replace('"cachedaemon" #', f'"{os.getgid()}" #'))
    settings = load(str(folder / "c.toml"), {}, {"sources.s.url": "https://host/"})
    assert f"ListenStream={settings.server.socket}\n" in (SYSTEMD / "cachedaemon.socket").read_text()
    assert settings.cache.dir == Path("/var/cache/cachedaemon")


# --- the installer -------------------------------------------------------------------------------------------------


def _installed(root: Path) -> set[str]:
    """Everything but what a release has in it."""
    return {
        str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() and "lib/python" not in str(path)
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_install_upgrade_and_uninstall(folder: Path) -> None:
    """Again changes nothing; another version has a folder of its own; what is not the installer's stays."""
    copy = folder / "project"
    copy.mkdir()
    for name in ("cachedaemon", "client", "systemd", "scripts", "pyproject.toml", "README.md", "LICENSE", "Makefile"):
        place = PROJECT / name
        shutil.copytree(place, copy / name) if place.is_dir() else shutil.copy(place, copy / name)
    root, prefix = folder / "root", folder / "root/opt/cachedaemon"
    environ = {**os.environ, "DESTDIR": str(root), "PIP_ARGS": "--no-deps", "PYTHON": _python()}

    def make(what: str) -> None:
        ran = _run("make", "-s", what, cwd=copy, env=environ)
        assert ran.returncode == 0, ran.stderr

    make("install-systemd")
    first = os.readlink(prefix / "current")
    assert (prefix / "current/bin/cachedaemon").read_text().startswith(f"#!/opt/cachedaemon/{first}/bin/python")
    unit = (root / "usr/local/lib/systemd/system/cachedaemon.service").read_text()
    assert unit == (SYSTEMD / "cachedaemon.service").read_text()
    config = root / "etc/cachedaemon/cachedaemon.toml"
    config.write_text("mine")
    before = _installed(root)
    make("install-systemd")
    assert _installed(root) == before
    (prefix / "other").mkdir()
    version = copy / "cachedaemon/__init__.py"
    good = version.read_text()
    version.write_text(good.replace("__version__ = ", "__version__ = 'no version'\n_ = "))
    assert _run("make", "-s", "install-systemd", cwd=copy, env=environ).returncode != 0
    assert _installed(root) == before
    version.write_text(f"{good}# newer\n")
    make("install-systemd")
    assert os.readlink(prefix / "previous") == first
    assert os.readlink(prefix / "current") != first
    assert (prefix / first).is_dir()
    assert config.read_text() == "mine"
    make("uninstall-systemd")
    assert _installed(root) == {"etc/cachedaemon/cachedaemon.toml"}
    assert os.listdir(prefix) == ["other"]


def test_an_interpreter_that_services_cannot_see_is_refused(folder: Path) -> None:
    """`ProtectHome=` hides it from the daemon."""
    if not sys.base_prefix.startswith(("/root/", "/home/")):
        pytest.skip("not here by design: this interpreter lies where services see it")
    environ = {**os.environ, "DESTDIR": str(folder), "PYTHON": sys.executable}
    ran = _run(PROJECT / "scripts/systemd", "install", env=environ)
    assert ran.returncode == 1
    assert "which services cannot see: PYTHON=... names another one" in ran.stderr
    assert os.listdir(folder) == []


def _python() -> str:
    """The system's interpreter, which runs what was installed for this one."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    ran = _run("/usr/bin/python3", "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])")
    if ran.stdout.strip() != version:
        pytest.skip(f"no /usr/bin/python3 of version {version} with venv")
    return "/usr/bin/python3"


# --- a machine that systemd boots ------------------------------------------------------------------------------------

# In mounts of its own: an overlay of this machine, with the service installed and this environment's libraries beside it. Arguments: a
# work folder, the project, the libraries.
_BOOT = r"""
set -eu
work=$1 project=$2 libraries=$3 root=$1/root
mount -t tmpfs -o size=2g,mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$root"
DESTDIR=$root PYTHON=/usr/bin/python3 PIP_ARGS=--no-deps "$project/scripts/systemd" install >&2
mkdir -p "$root/opt/libraries" "$root/srv/project"
mount --bind "$libraries" "$root/opt/libraries"
for site in "$root"/opt/cachedaemon/current/lib/python3*/site-packages; do echo /opt/libraries >"$site/libraries.pth"; done
cd "$project"
cp -r --parents cachedaemon client scripts systemd pyproject.toml README.md LICENSE "$root/srv/project"
cp tests/process/booted.py "$root/srv/"
system=$root/etc/systemd/system
for unit in systemd-networkd NetworkManager ifupdown; do ln -sfn /dev/null "$system/$unit-wait-online.service"; done
printf '%s\n' [Unit] 'Requires=basic.target test.service' AllowIsolate=yes >"$system/test.target"
printf '%s\n' [Unit] After=basic.target SuccessAction=exit FailureAction=exit \
  [Service] Type=oneshot TimeoutStartSec=600 'ExecStart=/opt/cachedaemon/current/bin/python /srv/booted.py' >"$system/test.service"
systemd-nspawn -q --directory="$root" --register=no --keep-unit --private-network --console=pipe --boot -- --unit=test.target >&2 </dev/null
cat "$root/result.jsonl"
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_booted_machine(folder: Path) -> None:
    """C-65, C-67, C-68: activation, users, restarts, kill -9, watchdog, upgrade, instances, places (booted.py)."""
    if not shutil.which("systemd-nspawn"):
        pytest.skip("no systemd-nspawn here")
    _python()
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _BOOT, "bash"]
    ran = _run(*command, folder, PROJECT, sysconfig.get_path("purelib"))
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert told, ran.stderr[-3000:]
    failed = [f"{one['check']}: {one['failed']}" for one in told if "failed" in one]
    assert not failed, "\n\n".join(failed)
    assert told[-1]["check"] == "nothing_runs_after_uninstalling"
