"""The cache of compiled models: a folder of shared libraries, from which sessions start without the compiler.

`InferenceSession` uses it by itself. An entry is found by the contents of the model and its external data, the options, the version of
this package and its compiler, and the processor. The folder is `$ONNXC_CACHE`; without it `$XDG_CACHE_HOME/onnxc` or
`~/.cache/onnxc`, on macOS `~/Library/Caches/onnxc`, on Windows `%LOCALAPPDATA%\\onnxc\\Cache`. `ONNXC_CACHE=off` switches it off.
`$ONNXC_CACHE_BYTES` bounds it (4 GiB by default): what was used least recently goes first.

Processes may share the folder: an entry takes its place whole, and one process at a time compiles a model while others wait for it.
Libraries of the folder are loaded as code. So one that belongs to another user, or that others may write to, is not used.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

__all__ = ["CacheWarning", "Entry", "clear", "entries", "folder", "limit"]

# Of the layout of the folder.
_FORMAT = "v1"
_DEFAULT_BYTES = 4 << 30
# What the check of an entry reads at its start and its end.
_EDGE = 1 << 16
# Files without a description, older than this, were left by a process that ended.
_LEFT_SECONDS = 24 * 3600


class CacheWarning(UserWarning):
    """The cache cannot be used: models are compiled each time."""


class Entry(NamedTuple):
    """A compiled model in the cache."""

    path: Path
    bytes: int
    # Seconds since the epoch.
    used: float
    # The model's file when it was compiled, or "" for one that was given as bytes.
    model: str


def folder() -> Optional[Path]:
    """The folder, which need not be there yet; None where the cache is switched off."""
    given = os.environ.get("ONNXC_CACHE")
    if given is not None:
        return None if given.strip().lower() in ("", "off", "0", "no", "none", "false") else Path(given).absolute()
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "onnxc" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "onnxc"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".cache") / "onnxc"


def limit() -> int:
    """The most bytes that the entries may take together."""
    given = os.environ.get("ONNXC_CACHE_BYTES")
    if not given:
        return _DEFAULT_BYTES
    try:
        return max(int(given), 0)
    except ValueError:
        raise ValueError(f"ONNXC_CACHE_BYTES={given} is not a number of bytes") from None


def entries() -> list[Entry]:
    """The compiled models in the cache, the least recently used first."""
    place = folder()
    return [] if place is None else _entries(place / _FORMAT)


def clear() -> int:
    """Removes all entries; gives how many bytes they had."""
    place = folder()
    if place is None or not place.is_dir():
        return 0
    count = 0
    for entry in _entries(place / _FORMAT):
        if _remove(entry.path):
            count += entry.bytes
    return count


def _entries(place: Path) -> list[Entry]:
    found = []
    for description in place.glob("*.json"):
        try:
            with open(description, encoding="utf-8") as file:
                text = json.load(file)
            path = place / text["file"]
            status = path.stat()
            found.append(Entry(path, status.st_size, description.stat().st_mtime, str(text["model"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda entry: entry.used)


def _remove(path: Path) -> bool:
    """Removes an entry. A library that is loaded stays where it is on Windows."""
    try:
        path.unlink()
        path.with_suffix(".json").unlink()
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            path.with_suffix(".json").unlink()
    except OSError:
        return False
    return True


def _edges(file: IO[bytes], size: int) -> str:
    """A digest of the start and the end of a file."""
    digest = hashlib.sha256(file.read(_EDGE))
    file.seek(max(size - _EDGE, 0))
    digest.update(file.read(_EDGE))
    return digest.hexdigest()


def _described(place: Path, key: str) -> Optional[dict[str, Any]]:
    try:
        with open(place / f"{key}.json", encoding="utf-8") as file:
            text = json.load(file)
        return text if isinstance(text, dict) else None
    except (OSError, ValueError):
        return None


def _find(place: Path, key: str) -> Optional["Found"]:
    """The library of a key, if it is there and whole."""
    text = _described(place, key)
    if text is None:
        return None
    try:
        path, notes = place / os.path.basename(str(text["file"])), dict(text["notes"])
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != text["bytes"] or _edges(file, size) != text["edges"]:
                return None
    except (OSError, KeyError, TypeError, ValueError):
        return None
    with contextlib.suppress(OSError):
        # For the order in which entries go. A folder may be read-only.
        os.utime(place / f"{key}.json")
    return Found(path, notes, True)


def _is_safe(place: Path) -> bool:
    """Whether nobody else can put code there."""
    if sys.platform == "win32":
        return True
    status = place.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def _usable() -> Optional[Path]:
    """The folder of entries, made if it has to be; None where there is no cache."""
    place = folder()
    if place is None:
        return None
    inner = place / _FORMAT
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        inner.mkdir(mode=0o700, exist_ok=True)
    try:
        if _is_safe(inner) and _is_safe(place):
            return inner
    except OSError as error:
        warnings.warn(f"no cache of compiled models in {place}: {error}", CacheWarning, stacklevel=4)
        return None
    text = f"{place} belongs to another user, or others may write to it: it is not used as a cache"
    warnings.warn(text, CacheWarning, stacklevel=4)
    return None


@contextlib.contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Holds a lock that ends with the process; other threads and processes wait."""
    with file:
        if sys.platform == "win32":
            import msvcrt

            while True:
                with contextlib.suppress(OSError):
                    file.seek(0)
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            # A file system without locks: entries take their place whole all the same, and a model may be compiled twice.
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _put(place: Path, key: str, made: Path, model: str, notes: dict[str, Any]) -> Path:
    """Gives a library its place: first itself, then what says that it is whole."""
    path = place / f"{key}{made.suffix}"
    with open(made, "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        edges = _edges(file, size)
        os.fsync(file.fileno())
    os.replace(made, path)
    describe(place, key, {"file": path.name, "bytes": size, "edges": edges, "model": model, "notes": notes})
    return path


def describe(place: Path, key: str, text: dict[str, Any]) -> None:
    """Writes the description of a key."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=place, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(text, file)
        os.replace(name, place / f"{key}.json")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _trim(place: Path, most: int, keep: Path) -> None:
    """Removes what was used least recently until the rest takes at most `most` bytes, and what ended processes left."""
    import shutil

    found = _entries(place)
    total = sum(entry.bytes for entry in found)
    for entry in found:
        if total <= most:
            break
        if entry.path != keep and _remove(entry.path):
            total -= entry.bytes
    known = {entry.path.name for entry in found}
    now = time.time()
    for path in place.iterdir():
        with contextlib.suppress(OSError):
            if path.suffix in (".json", ".lock") or path.name in known or now - path.stat().st_mtime < _LEFT_SECONDS:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _with_files(place: Path, key: str, base: Optional[Path]) -> Optional[str]:
    """The key of a model with the contents of the external data that the compiler read last time; None where that is unknown."""
    text = _described(place, key)
    if text is None or base is None or "external" not in text:
        return key
    try:
        digests = [digest_of(base / name) for name in text["external"]]
    except OSError:
        return None
    return combined(key, text["external"], digests)


def combined(key: str, names: list[str], digests: list[str]) -> str:
    """The key of a model and files that it refers to."""
    return hashlib.sha256(json.dumps([key, names, digests]).encode()).hexdigest()


class Found(NamedTuple):
    """A library that `obtain` gives, what was noted of it, and whether it was in the cache."""

    path: Path
    notes: dict[str, Any]
    is_hit: bool


def obtain(
    key: str,
    base: Optional[Path],
    model: str,
    build: Callable[[Path], list[str]],
    note: Callable[[Path], dict[str, Any]],
    suffix: str,
    own: Callable[[], Path],
) -> Found:
    """The library of a key: from the cache, or built now.

    `build` writes the library at a path, and gives the names of files that it read besides the model, as seen from the folder `base`;
    `note` gives what to note of the library. Where there is no cache, the library is made in the folder that `own` makes.
    """
    place = _usable()
    if place is not None:
        full = _with_files(place, key, base)
        found = _find(place, full) if full is not None else None
        if found is not None:
            return found
    lock = None
    if place is not None:
        # In a folder that is read-only, only what is there is found.
        with contextlib.suppress(OSError):
            lock = open(place / f"{key[:2]}.lock", "a+b")
    if place is None or lock is None:
        made = own() / f"model{suffix}"
        build(made)
        return Found(made, note(made), False)
    # Starts from the cache do without.
    import shutil
    import tempfile

    with _locked(lock):
        full = _with_files(place, key, base)
        found = _find(place, full) if full is not None else None
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(dir=place, prefix="new-") as new:
            made = Path(new) / f"model{suffix}"
            names = build(made)
            notes = note(made)
            full = key
            try:
                if names and base is not None:
                    full = combined(key, names, [digest_of(base / name) for name in names])
                    describe(place, key, {"external": names})
                most = limit()
                if made.stat().st_size <= most:
                    path = _put(place, full, made, model, notes)
                    _trim(place, most, path)
                    return Found(path, notes, False)
            except OSError as error:
                warnings.warn(f"the compiled model is not kept in {place}: {error}", CacheWarning, stacklevel=4)
            if made.exists():
                kept = own() / made.name
                shutil.move(made, kept)
                return Found(kept, notes, False)
            # It has its place already.
            return Found(place / f"{full}{suffix}", notes, False)

