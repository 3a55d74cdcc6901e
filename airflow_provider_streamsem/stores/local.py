"""
A store in a directory of a local or mounted POSIX file system.

To create an object, the store writes a temporary file, syncs it, and hard-links it to the object's path. The link either makes the complete object visible,
or fails because the path exists. So no reader sees a partial object, and at most one create succeeds. The store then syncs the directory.

The store does not list, read or delete through symbolic links below the root. Otherwise, any user with write access below the root could make this process
access every file of the machine. One race remains: a process that replaces a directory with a link between the check and the use can redirect one request out
of the root.

Known limitation: the file system must support hard links with an atomic ``link``. Some network mounts, and FUSE mounts of object stores, do not.
``streamsem doctor`` detects this.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterator
from contextlib import suppress

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownResultError, checked_key

_PARTIAL = ".streamsem-partial-"
_REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EMLINK,
    errno.ENOTSUP,
    errno.ELOOP,
}


_ADVICE = {
    errno.ENOTDIR: "correct the location: a part of its path is a file, and not a directory",
    errno.EISDIR: "move the directory at `key` away",
    errno.ELOOP: "correct the symbolic links in the path of the location",
    errno.ENAMETOOLONG: "use a location with a shorter path, and shorter names",
    errno.ENOSPC: "free space, and inodes, at the location",
    errno.EDQUOT: "free space at the location, or raise the quota of the user",
    errno.EROFS: "mount the file system of the location for writing, or use another location",
    errno.ENOTSUP: "use a file system with hard links, or another location",
}
"""errno → the advice; the class of the error has the advice for the others, which are about permissions."""


class LocalStore:
    """
    A store whose objects are files below a directory.

    The permissions of new files and directories follow the process's umask. Users other than owner and group get no permissions, because a log contains
    quarantined records.

    :param root: an absolute path, which may be a symbolic link. The first create creates the directory
    :param follows_links: whether a symbolic link to a file is treated as that file. Required for files that other programs create
    """

    _other_users_mode = 0o000

    def __init__(self, root: str, *, follows_links: bool = False) -> None:
        self.root = root
        self.url = root
        self.follows_links = follows_links

    def create(self, key: str, data: bytes) -> bool:
        """Write a temporary file, sync it, link it to the key, and sync the directory."""
        path = self._path(key)
        directory = os.path.dirname(path)
        if os.path.lexists(path):
            self._sync_directory(directory)  # The creator may have ended before this sync.
            return False
        partial = os.path.join(directory, _PARTIAL + SYSTEM_CLOCK.new_id())
        try:
            self._make_directories(directory)
            with open(partial, "xb", opener=self._open_new) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._remove_partial(partial)
            raise self._translated(error, key) from error
        try:
            os.link(partial, path)
        except FileExistsError:
            self._sync_directory(directory)  # The creator may end before its sync.
            return False
        except OSError as error:
            raise self._translated(error, key) from error
        finally:
            self._remove_partial(partial)
        self._sync_directory(directory)
        return True

    def _open_new(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o660 | (self._other_users_mode & 0o006))

    def read(self, key: str) -> bytes | None:
        try:
            with open(self._path(key), "rb", opener=self._open_existing) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(error, key) from error

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        directory = prefix.rpartition("/")[0]
        stats = self._walk(directory + "/" if directory else "", prefix, start_after)
        for count, stat in enumerate(stats):
            if limit is not None and count >= limit:
                return
            yield stat

    def stat(self, key: str) -> ObjectStat | None:
        try:
            status = os.stat(self._path(key), follow_symlinks=self.follows_links)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._translated(error, key) from error
        if modes.S_ISLNK(status.st_mode):
            return None
        return _stat(key, status)

    def delete(self, key: str) -> None:
        """Delete the file and the parent directories that become empty."""
        path = self._path(key)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._translated(error, key) from error
        parent = os.path.dirname(path)
        while parent != self.root and self._removed_empty(parent):
            parent = os.path.dirname(parent)

    def _walk(self, directory: str, prefix: str, start_after: str) -> Iterator[ObjectStat]:
        try:
            with os.scandir(self._directory(directory)) as entries:
                # Directories are sorted with a trailing "/", so that the keys are in the order of an object store: "a-b" before "a/b".
                by_key = {
                    directory + name: entry
                    for entry in entries
                    if (name := _listed_name(entry, follows_links=self.follows_links))
                }
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._translated(error, directory) from error
        for key in sorted(by_key, key=os.fsencode):
            if key.endswith("/"):
                if (key.startswith(prefix) or prefix.startswith(key)) and not (
                    key <= start_after and not start_after.startswith(key)
                ):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after and (stat := self._listed(key, by_key[key])) is not None:
                yield stat

    def _listed(self, key: str, entry: os.DirEntry[str]) -> ObjectStat | None:
        try:
            status = entry.stat(follow_symlinks=self.follows_links)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(error, key) from error
        return _stat(key, status)

    def _path(self, key: str) -> str:
        """No directory of the path below the root may be a symbolic link."""
        directory, _, name = checked_key(key).rpartition("/")
        return os.path.join(self._directory(directory), name)

    def _directory(self, prefix: str) -> str:
        path = self.root
        for part in filter(None, prefix.split("/")):
            path = os.path.join(path, checked_key(part))
            if os.path.islink(path):
                summary = "the store does not follow a symbolic link below its root; nothing was read, written or deleted through it"
                raise StoreRefusedError(summary, location=self.root, link=path)
        return path

    def _open_existing(self, path: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a named pipe would block until another process opens it for writing.
        return os.open(path, flags | os.O_NONBLOCK | (0 if self.follows_links else os.O_NOFOLLOW))

    def _make_directories(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            is_below_root = f"{path}/".startswith(f"{self.root.rstrip('/')}/")
            with suppress(FileExistsError):
                os.mkdir(path, 0o770 | self._other_users_mode if is_below_root else 0o777)
            self._sync_directory(
                os.path.dirname(path)
            )  # another process that has created the directory may end before its sync

    def _sync_directory(self, directory: str) -> None:
        # If the sync fails, the file exists but may not survive a power failure. A retry of the create finds the file and syncs the directory again.
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnknownResultError(directory) from error

    @staticmethod
    def _remove_partial(partial: str) -> None:
        try:
            os.unlink(partial)
        except OSError:
            return

    @staticmethod
    def _removed_empty(directory: str) -> bool:
        try:
            os.rmdir(directory)
        except OSError:
            return False
        return True

    def _translated(self, error: OSError, key: str) -> Exception:
        if error.errno in _REFUSED:
            refused = StoreRefusedError(
                "the file system refused a request; the request had no effect",
                location=self.root,
                key=key,
                errno=errno.errorcode[error.errno],
            )
            advice = _ADVICE.get(error.errno)
            return (
                refused
                if advice is None
                else refused.advising(f"{advice}; then run again. Committed versions stay committed.")
            )
        return UnknownResultError(key)


def _stat(key: str, status: os.stat_result) -> ObjectStat:
    """Return the metadata of a file. A copy may set an old mtime, but no process can set the ctime."""
    age_ns = SYSTEM_CLOCK.now_ms() * 1_000_000 - max(status.st_mtime_ns, status.st_ctime_ns)
    return ObjectStat(key=key, bytes=status.st_size, etag="", mtime_ns=status.st_mtime_ns, age_ns=age_ns)


def _listed_name(entry: os.DirEntry[str], *, follows_links: bool) -> str:
    """
    Return the name of a directory entry, with a trailing "/" for a directory; "" for an entry that is not an object: a temporary file, socket, pipe or link.

    The store never follows a link to a directory. With a link to a sibling directory, a listing would contain each file twice. With a link to a parent
    directory, it would not end.
    """
    if entry.is_dir(follow_symlinks=False):
        return entry.name + "/"
    is_file = entry.is_file(follow_symlinks=follows_links)
    return entry.name if is_file and not entry.name.startswith(_PARTIAL) else ""


def process_umask() -> int:
    """Return the umask of this process. Linux shows it in ``/proc``. On other systems, a process can read its umask only by setting another one."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):
        umask = os.umask(0o077)
        os.umask(umask)
        return umask


def open_local_store(path: str) -> LocalStore:
    """
    Open the store in a directory.

    :param path: an absolute path
    :raises InvalidError: the path is ``/``
    """
    if path == "/":
        raise InvalidError("the root of the file system cannot be a store", given=path)
    return LocalStore(path)
