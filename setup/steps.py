"""The steps of set-up, in order. Each does nothing when its stamp is fresh, and leaves whole files or none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from setup.fetch import Remote, SetupError, Unreachable, WrongHash, check, download, sha256_of
from setup.paths import PYODIDE
from setup.registries import Member, from_npm, from_wheel, run
from setup.stamp import Stamp, digest

CDN_TIMEOUT = 4.0  # seconds; where there is no way to the CDN, say so soon
# Chat templates need these; pure Python, so what pip put into .venv runs in the page, too.
TEMPLATES = ("jinja2", "markupsafe")
LIST_FILES = """
import json, sys
from importlib.metadata import distribution
found = {name: distribution(name) for name in sys.argv[1:]}
print(json.dumps({name: [d.version, {str(f): str(f.locate()) for f in d.files}] for name, d in found.items()}))
"""
# What a candlewick wheel is built with; it lies in .venv, so building asks no network.
BUILD_WHEEL = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


class Setup:
    """Everything that is made in a checkout: .venv, build/{pyodide/VERSION,wheels,lib} and the weights in models/."""

    def __init__(self, root: Path):
        self.root = root
        self.build = root / "build"
        self.downloads = self.build / "downloads"
        self.stamp = Stamp(self.build / "setup.json")
        self.sources = json.loads((root / "setup" / "sources.json").read_text())
        scripts = ".venv/Scripts/python.exe" if os.name == "nt" else ".venv/bin/python"
        self.python = root / scripts
        self._cdn_reachable = True

    def run(self) -> None:
        """All steps, one process at a time. Raises SetupError."""
        with exclusively(self.build / "setup.lock"):
            self._run()

    def _run(self) -> None:
        self.environment()
        self.pyodide()
        self.wheels()
        self.mediabunny()
        for manifest in sorted(self.root.glob("models/*/manifest.json")):
            self.checkpoint(manifest)
        self.template_wheel()
        self.candlewick_wheel()

    # --- the Python environment -----------------------------------------------------------------------------------

    def environment(self) -> None:
        """.venv with the pinned packages and the `candlewick` command, which runs this checkout's py/."""
        requirements = self.root / "requirements.txt"
        inputs = digest(requirements.read_bytes(), (self.root / "pyproject.toml").read_bytes(), str(self.root))
        if self.stamp.fresh("environment", inputs) and self.python.exists():
            return
        if not self._works():
            say("Making the Python environment in .venv")
            command = [sys.executable, "-m", "venv", "--clear", str(self.root / ".venv")]
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                raise SetupError(
                    "Python could not make the environment .venv. On Debian and Ubuntu: sudo apt install python3-venv\n    "
                    + (made.stdout + made.stderr).strip()[-500:]
                )
        say("Installing packages into .venv")
        pip: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
        pip += [] if sys.stderr.isatty() else ["--quiet"]
        run([*pip, "-r", requirements], stderr=subprocess.PIPE)
        run([*pip, "--quiet", "--no-deps", "--no-build-isolation", "-e", self.root], stderr=subprocess.PIPE)
        script = self.python.with_name("candlewick.exe" if os.name == "nt" else "candlewick")
        self.stamp.record("environment", inputs, [script, self.python.parent.parent / "pyvenv.cfg"])

    def _works(self) -> bool:
        try:
            return subprocess.run([self.python, "-m", "pip", "--version"], capture_output=True).returncode == 0
        except OSError:
            return False

    # --- Pyodide and the wheels that come with it -----------------------------------------------------------------

    def pyodide(self) -> None:
        """build/pyodide/VERSION: the CPython runtime for the browser. Other versions go when this one is whole."""
        source = self.sources["pyodide"]
        members = [Member(**file) for file in source["files"]]
        whole = Member(**source["tarball"])

        def fallback(wanted: Sequence[Member], folder: Path) -> None:
            from_npm(source["npm"], whole, wanted, folder)

        folder = pyodide_folder(self.root)
        for member in members:  # a checkout of before had them one folder higher
            name = Path(member.path).name
            if not (folder / name).exists() and _whole(folder.parent / name, member):
                folder.mkdir(parents=True, exist_ok=True)
                os.replace(folder.parent / name, folder / name)
        self._collect("pyodide", source, members, folder, fallback)
        for other in folder.parent.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)
            elif not other.is_dir():
                other.unlink()

    def wheels(self) -> None:
        """build/wheels: NumPy for Pyodide and the installer."""
        source = self.sources["wheels"]
        members = [Member(**file) for file in source["files"]]

        def fallback(wanted: Sequence[Member], folder: Path) -> None:
            from_wheel(self.python, source["pip"], wanted, folder)

        self._collect("wheels", source, members, self.build / "wheels", fallback)

    def mediabunny(self) -> None:
        """build/lib/mediabunny-VERSION: what takes sound and film files apart in the page. Other versions go."""
        source = self.sources["mediabunny"]
        members, whole = [Member(**file) for file in source["files"]], Member(**source["tarball"])

        def fallback(wanted: Sequence[Member], folder: Path) -> None:
            from_npm(source["npm"], whole, wanted, folder)

        folder = self.build / "lib" / f"mediabunny-{source['version']}"
        self._collect("mediabunny", source, members, folder, fallback)
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other)

    def _collect(self, step: str, source: dict[str, Any], members: list[Member], folder: Path, fallback: Any) -> None:
        """Files into a folder: those that lie there whole stay, the others come from the CDN or else the fallback."""
        files = [folder / Path(member.path).name for member in members]
        inputs = digest(json.dumps(source, sort_keys=True))
        if self.stamp.fresh(step, inputs):
            return
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [member for member, file in zip(members, files) if not _whole(file, member)]
        if wanted:
            left = self._from_cdn(source["cdn"], wanted, self.downloads)
            if left:
                fallback(left, self.downloads)
            for member in wanted:
                name = Path(member.path).name
                os.replace(self.downloads / name, folder / name)
        self.stamp.record(step, inputs, files)

    def _from_cdn(self, base: str, wanted: list[Member], folder: Path) -> list[Member]:
        """Fetch what the CDN has into a folder -> what is still wanted. Says once when there is no way to it."""
        left = []
        for member in wanted:
            name = Path(member.path).name
            if self._cdn_reachable:
                try:
                    download(Remote(base + name), folder / name, member.bytes, member.sha256, name, CDN_TIMEOUT)
                    continue
                except (Unreachable, WrongHash) as error:
                    self._cdn_reachable = not isinstance(error, Unreachable)
                    say(f"The CDN cannot be used ({error}); taking the package registries.")
            left.append(member)
        return left

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint(self, path: Path) -> None:
        """The weights that a tracked manifest.json describes, fetched from its sources and converted.

        Without a converter each file is one of the sources, the one with its sha256, under the name that the file has here.
        """
        manifest, folder = json.loads(path.read_text()), path.parent
        if not manifest.get("sources"):
            return  # the files lie in the checkout
        files = [Member(file["path"], file["bytes"], file["sha256"]) for file in manifest["files"]]
        inputs = digest(json.dumps([manifest["files"], manifest["sources"]], sort_keys=True))
        step = f"models/{folder.name}"
        if self.stamp.fresh(step, inputs):
            return
        if not all(_whole(folder / file.path, file) for file in files):
            names = {file.path: file.path for file in files} if manifest.get("converter") else _unconverted(manifest)
            say(f"Fetching {manifest['name']} ({manifest['licence']})")
            downloads = self.downloads / folder.name
            for sources in _by_package(manifest["sources"]):
                self._package(sources, downloads)
            made = self._convert(manifest, downloads) if manifest.get("converter") else downloads
            for file in files:
                check(made / names[file.path], file.sha256, f"{folder.name}/{file.path}")
                os.replace(made / names[file.path], folder / file.path)
            for scratch in {made, downloads}:
                shutil.rmtree(scratch)
        self.stamp.record(step, inputs, [folder / file.path for file in files])

    def _convert(self, manifest: dict[str, Any], downloads: Path) -> Path:
        """Run a checkpoint's converter over its fetched sources -> folder with what it made."""
        say(f"Converting {manifest['name']}")
        made = downloads.with_name(f"{downloads.name}.made")
        shutil.rmtree(made, ignore_errors=True)
        run(
            [self.python, "-m", manifest["converter"], downloads, made],
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(self.root / "py")},
        )
        return made

    def _package(self, sources: list[dict[str, Any]], folder: Path) -> None:
        """The wanted files of one package into a folder, from the registry that has it (PyPI where none is named)."""
        first = sources[0]
        members = [Member(source["member"], source["bytes"], source["sha256"]) for source in sources]
        folder.mkdir(parents=True, exist_ok=True)
        if first.get("registry") == "npm":
            left = self._from_cdn(first["cdn"], members, folder) if "cdn" in first else members
            if left:
                from_npm(f"{first['package']}@{first['version']}", Member(**first["tarball"]), left, folder)
        else:
            from_wheel(self.python, f"{first['package']}=={first['version']}", members, folder)

    # --- the wheels that are made here ----------------------------------------------------------------------------

    def template_wheel(self) -> None:
        """build/wheels/jinja2-VERSION-py3-none-any.whl: jinja2 and markupsafe, without machine code, out of .venv."""
        inputs = digest((self.root / "requirements.txt").read_bytes(), LIST_FILES)
        if self.stamp.fresh("template wheel", inputs):
            return
        listed = json.loads(run([self.python, "-c", LIST_FILES, *TEMPLATES], capture_output=True).stdout)
        files: dict[str, str] = {}
        for name, (_, places) in listed.items():
            info = f"{name}-{listed[name][0]}.dist-info/"
            wanted = (f"{info}METADATA", f"{info}licenses/")
            files |= {f: at for f, at in places.items() if f.endswith(".py") or f.startswith(wanted)}
        folder = self.build / "wheels"
        folder.mkdir(parents=True, exist_ok=True)
        wheel = folder / f"jinja2-{listed['jinja2'][0]}-py3-none-any.whl"
        partial = wheel.with_name(wheel.name + ".part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                archive.writestr(zipfile.ZipInfo(name), Path(files[name]).read_bytes(), zipfile.ZIP_DEFLATED)
        for old in folder.glob("jinja2-*.whl"):
            old.unlink()
        os.replace(partial, wheel)
        self.stamp.record("template wheel", inputs, [wheel])

    def candlewick_wheel(self) -> None:
        """build/wheels/candlewick-*.whl from py/, and build/wheels/index.json, which the page reads first."""
        package = self.root / "py" / "candlewick"
        tracked = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        folder = self.build / "wheels"
        third_party = [Path(file["path"]).name for file in self.sources["wheels"]["files"]]
        third_party += sorted(file.name for file in folder.glob("jinja2-*.whl"))
        inputs = digest(
            (self.root / "pyproject.toml").read_bytes(),
            json.dumps([self.sources["wheels"]["files"], third_party]),
            *(part for path in tracked for part in (str(path.relative_to(self.root)), path.read_bytes())),
        )
        if self.stamp.fresh("candlewick wheel", inputs):
            return
        fresh = folder / "new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        built = run([self.python, "-c", BUILD_WHEEL, fresh], cwd=self.root, capture_output=True).stdout.split()[-1]
        for old in folder.glob("candlewick-*.whl"):
            old.unlink()
        os.replace(fresh / built, folder / built)
        fresh.rmdir()
        names = [*third_party, built]
        index = {name.split("-")[0]: name for name in names} | {"sha256": {name: sha256_of(folder / name) for name in names}}
        partial = folder / "index.json.part"
        partial.write_text(json.dumps(index, indent=1) + "\n")
        os.replace(partial, folder / "index.json")
        self.stamp.record("candlewick wheel", inputs, [folder / built, folder / "index.json"])


def pyodide_folder(root: Path) -> Path:
    """Where Pyodide lies in a checkout: a folder of its version, so that browsers may keep it for good."""
    return root.joinpath(*PYODIDE, json.loads((root / "setup" / "sources.json").read_text())["pyodide"]["version"])


@contextlib.contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold a lock file; wait for another process that holds it. The system frees it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        waited = False
        while not _lock(file):
            if not waited:
                say("Another set-up of this checkout is running; waiting for it.")
            waited = True
            time.sleep(0.1)
        yield


def _lock(file: IO[str]) -> bool:
    """Lock an open file, if nobody else holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def say(line: str) -> None:
    """One line about what goes on."""
    print(line, file=sys.stderr, flush=True)


def _whole(path: Path, member: Member) -> bool:
    return path.is_file() and path.stat().st_size == member.bytes and sha256_of(path) == member.sha256


def _unconverted(manifest: dict[str, Any]) -> dict[str, str]:
    """{file of the checkpoint: name under which its source was fetched}. Raises SetupError for a file that is no source."""
    fetched = {source["sha256"]: Path(source["member"]).name for source in manifest["sources"]}
    names = {file["path"]: fetched.get(file["sha256"], "") for file in manifest["files"]}
    if strays := [path for path, name in names.items() if not name]:
        raise SetupError(f"{manifest['name']}/manifest.json: no converter is named, so each file must be one of the sources "
                         f"with the same sha256; {', '.join(strays)} is none")
    return names


def _by_package(sources: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Sources of a manifest, those of one package together."""
    packages: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for source in sources:
        packages.setdefault((source.get("registry", "pypi"), source["package"], source["version"]), []).append(source)
    return list(packages.values())
