"""
A store in a directory of a local or mounted POSIX file system.

An object is written to a name of its own, synced, and linked to its key: a link either makes the whole object visible or fails because the key is there,
so no torn entry is ever visible and at most one creator wins. The directory is synced after it.

Symbolic links below the root are neither listed, read nor deleted through: whoever may write below the root would reach any file of the machine by them.
A process that replaces a directory by a link between the check and the use can still lead one request out of the root.

Known limitation: the file system must have hard links and an atomic ``link`` (most have; some network mounts and FUSE mounts of object stores do not):
``streamsem doctor`` finds out.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Iterator

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownAnswerError, checked_key

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


class LocalStore:
    """
    Objects as files below ``root``.

    Files and directories get the modes of the process's umask, and none for other users than the owner and the group: a log holds quarantined records.

    :param root: an absolute path; made on the first create. It may be a symbolic link itself
    :param follows_links: whether a link to a file counts as that file: for files that others put there
    """

    _other_users = 0o000

    def __init__(self, root: str, *, follows_links: bool = False) -> None:
        self.root = root
        self.url = root
        self.follows_links = follows_links

    def create(self, key: str, data: bytes) -> bool:
        """Write to a name of its own, sync, link, sync the directory."""
        path = self._path(key)
        directory = os.path.dirname(path)
        if os.path.lexists(path):
            self._sync_directory(directory)  # its creator may have died before its own sync
            return False
        partial = os.path.join(directory, _PARTIAL + SYSTEM_CLOCK.new_id())
        try:
            self._make_directories(directory)
            with open(partial, "xb", opener=self._opened) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._remove_partial(partial)
            raise self._translated(error, key) from error
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._translated(error, key) from error
        finally:
            self._remove_partial(partial)
        self._sync_directory(directory)
        return True

    def _opened(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o660 | (self._other_users & 0o006))

    def read(self, key: str) -> bytes | None:
        """The file's bytes, or ``None``."""
        try:
            with open(self._path(key), "rb", opener=self._opener) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(error, key) from error

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Files in the order of their keys, as a walk that opens one directory at a time."""
        directory = prefix.rpartition("/")[0]
        found = self._walk(directory + "/" if directory else "", prefix, start_after)
        for count, stat in enumerate(found):
            if limit is not None and count >= limit:
                return
            yield stat

    def stat(self, key: str) -> ObjectStat | None:
        """Size and mtime, or ``None``."""
        try:
            status = os.stat(self._path(key), follow_symlinks=self.follows_links)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._translated(error, key) from error
        if modes.S_ISLNK(status.st_mode):
            return None
        return ObjectStat(key=key, bytes=status.st_size, etag="", mtime_ns=status.st_mtime_ns)

    def delete(self, key: str) -> None:
        """Remove the file, and its directory where that leaves it empty."""
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
                # A directory sorts as its name with "/": "a-b" before "a/b", as in an object store.
                found = {
                    directory + name: entry
                    for entry in entries
                    if (name := _listed_name(entry, follows_links=self.follows_links))
                }
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._translated(error, directory) from error
        for key in sorted(found, key=os.fsencode):
            if key.endswith("/"):
                if (key.startswith(prefix) or prefix.startswith(key)) and not (
                    key <= start_after and not start_after.startswith(key)
                ):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after and (stat := self._listed(key, found[key])) is not None:
                yield stat

    def _listed(self, key: str, entry: os.DirEntry[str]) -> ObjectStat | None:
        try:
            status = entry.stat(follow_symlinks=self.follows_links)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(error, key) from error
        return ObjectStat(key=key, bytes=status.st_size, etag="", mtime_ns=status.st_mtime_ns)

    def _path(self, key: str) -> str:
        """The file of a key, in a directory that no link leads to."""
        directory, _, name = checked_key(key).rpartition("/")
        return os.path.join(self._directory(directory), name)

    def _directory(self, prefix: str) -> str:
        """
        The directory of a prefix.

        :raises StoreRefusedError: a part of it below the root is a symbolic link
        """
        path = self.root
        for part in filter(None, prefix.split("/")):
            path = os.path.join(path, checked_key(part))
            if os.path.islink(path):
                what = "a symbolic link below the root is not followed; nothing was read, written or deleted through it"
                raise StoreRefusedError(what, place=self.root, link=path)
        return path

    def _opener(self, path: str, flags: int) -> int:
        # A pipe in an object's place would wait for its writer for ever.
        return os.open(path, flags | os.O_NONBLOCK | (0 if self.follows_links else os.O_NOFOLLOW))

    def _make_directories(self, directory: str) -> None:
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            is_ours = f"{path}/".startswith(f"{self.root.rstrip('/')}/")
            try:
                os.mkdir(path, 0o770 | self._other_users if is_ours else 0o777)
            except FileExistsError:
                continue
            self._sync_directory(os.path.dirname(path))

    def _sync_directory(self, directory: str) -> None:
        # A failed sync means that the link may not survive a power cut: applied, but not known to be durable. Sending again finds it.
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnknownAnswerError(directory) from error

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
            return StoreRefusedError(
                "the file system refused a request; the object was not written",
                place=self.root,
                key=key,
                errno=errno.errorcode[error.errno],
            )
        return UnknownAnswerError(key)


def _listed_name(entry: os.DirEntry[str], *, follows_links: bool) -> str:
    """
    An entry's name, with "/" for a directory; "" for what is no object: half-written files, sockets, pipes, and links.

    A link to a directory is never followed: beside its target it would show each file twice, and upwards for ever.
    """
    if entry.is_dir(follow_symlinks=False):
        return entry.name + "/"
    is_file = entry.is_file(follow_symlinks=follows_links)
    return entry.name if is_file and not entry.name.startswith(_PARTIAL) else ""


def process_umask() -> int:
    """The umask of this process. Linux tells it; elsewhere it can only be read by setting it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):
        found = os.umask(0o077)
        os.umask(found)
        return found


def open_local_store(path: str) -> LocalStore:
    """The store below an absolute path."""
    if path == "/":
        raise InvalidError("the root of the file system cannot be a store", given=path)
    return LocalStore(path)
