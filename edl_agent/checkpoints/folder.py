"""One folder of checkpoints: write so that a crash leaves the old or the new, read nothing but plain files in it.

Every name is looked up relative to the opened folder and without following a symlink, so nothing that stands in a
manifest or in etcd leads out of it. (The folder's own path may contain symlinks: that is how volumes are mounted.)
"""

import contextlib
import errno
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from edl_agent.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointStorageDenied,
    CheckpointStorageFull,
    EdlAgentError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Writer = Callable[[IO[bytes]], object]
"""Writes a checkpoint's bytes, in order (no seeking), into the file it is given."""

Buffer = bytes | bytearray | memoryview
"""What has its bytes in memory already."""

Passed = Callable[[str], None]
"""Told of each step that is done; for tests, which end the process there."""

_CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking, since a FIFO of that name would hold an open up for ever."""


class WriterFailed(Exception):
    """Carries an error of the program's own writer past those of the file system; never leaves the package."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn the operating system's errors into those of the package; let those of the program's writer through."""
    try:
        yield
    except OSError as error:
        if isinstance(error, EdlAgentError):  # a deadline of etcd's is a TimeoutError, and that is an OSError
            raise
        raise storage_error(what, error) from error
    except WriterFailed as failed:
        raise failed.error from failed.error.__cause__


def storage_error(what: str, error: OSError) -> CheckpointError:
    """The error of the package for one of the operating system."""
    kind = CheckpointError
    if error.errno in _FULL:
        kind = CheckpointStorageFull
    elif error.errno in _DENIED:
        kind = CheckpointStorageDenied
    return kind(f"{what}: {error.strerror or error}")


class Written(NamedTuple):
    """What a file holds: bytes, crc32 (IEEE)."""

    size: int
    crc32: int


class Folder:
    """An opened folder. A context manager; raises the operating system's errors (see `storage_errors`).

    Args:
        path: an existing folder.
        passed: see `Passed`.
    """

    def __init__(self, path: str, passed: Passed = lambda step: None) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._passed = passed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._descriptor)

    def names(self) -> list[str]:
        """Names in the folder, sorted."""
        return sorted(os.listdir(self._descriptor))

    def modified(self, name: str) -> float:
        """Time of the last change, seconds since 1970."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime

    def write(self, name: str, source: Writer | Buffer, what: str) -> Written:
        """Write a file that is there wholly or not at all, also after a loss of power, and read it back.

        Into ``<name>.tmp``; fsync; rename; fsync of the folder; compare length and crc32. On an error nothing is left.

        Args:
            name: of a file that does not exist.
            source: the bytes, or who writes them.
            what: for `Passed`.

        Raises:
            CheckpointCorrupt: what was read back differs.
            OSError: of the file system, also where the writer has swallowed it.
            WriterFailed: the writer raised something else.
        """
        temporary = name + ".tmp"
        in_place = False
        descriptor = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o666,
            dir_fd=self._descriptor,
        )
        try:
            try:
                self._passed(f"{what} opened")
                written = _fill(descriptor, source)
                self._passed(f"{what} written")
                os.fsync(descriptor)
                _forget_cached(descriptor)
            finally:
                os.close(descriptor)
            self._passed(f"{what} synced")
            os.rename(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            in_place = True
            self._passed(f"{what} renamed")
            self.sync()
            self._passed(f"{what} folder synced")
            reason = self.differs(name, written.size, written.crc32)
            if reason:
                raise CheckpointCorrupt(f"{name} was written, and read back otherwise: {reason}")
            self._passed(f"{what} verified")
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(name if in_place else temporary)
            raise
        return written

    def adopt(self, name: str) -> Written:
        """Make a file that somebody else wrote safe on disk, and say what it holds."""
        with self._open(name) as descriptor:
            os.fsync(descriptor)
            written = _content(descriptor)
        self.sync()
        return written

    def read(self, name: str, most: int) -> bytes:
        """The content of a small file.

        Raises:
            ValueError: it is larger, or no plain file.
            OSError: it cannot be read.
        """
        with self._open(name) as descriptor:
            if os.fstat(descriptor).st_size > most:
                raise ValueError("it is too large")
            parts = bytearray()
            while len(parts) <= most and (part := os.read(descriptor, _CHUNK)):
                parts += part
        return bytes(parts)

    def differs(self, name: str, size: int | None, crc32: int | None, md5: str = "") -> str:
        """Why a file is not what it should be; empty if it is. ``None`` and an empty md5 are not compared.

        Raises:
            OSError: it is there and cannot be read.
        """
        try:
            with self._open(name) as descriptor:
                length = os.fstat(descriptor).st_size
                if size is not None and length != size:
                    return f"it has {length} bytes in place of {size}"
                if crc32 is not None and _content(descriptor).crc32 != crc32:
                    return "its crc32 is wrong"
                if crc32 is None and md5:
                    with open(descriptor, "rb", closefd=False) as file:
                        if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != md5:
                            return "its md5 is wrong"
        except FileNotFoundError:
            return "it is missing"
        except ValueError as error:
            return str(error)
        return ""

    def reader(self, name: str) -> IO[bytes]:
        """The file, opened for reading.

        Raises:
            ValueError: no plain file.
            OSError: it cannot be read.
        """
        with self._open(name) as descriptor:
            return open(os.dup(descriptor), "rb")

    def set_aside(self, name: str) -> None:
        """Rename to ``<name>.corrupt``, so that it is found by people only."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, name + ".corrupt", src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def sync(self) -> None:
        """Make renames and deletions safe on disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such thing
                raise

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[int]:
        try:
            descriptor = os.open(name, _READ, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a symlink; a socket
                raise ValueError("it is no plain file") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is no plain file")
            yield descriptor
        finally:
            os.close(descriptor)


class _Sums(io.RawIOBase):
    """Counts and sums up what goes through to a file descriptor. Cannot seek: what is summed up stays as it is."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.size = 0
        self.crc32 = 0
        self.failure: OSError | None = None
        self.discard = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: "ReadableBuffer", /) -> int:
        view = memoryview(data).cast("B")
        if self.discard:
            return len(view)
        try:
            count = os.write(self._descriptor, view)
        except OSError as error:
            self.failure = error
            raise
        self.crc32 = zlib.crc32(view[:count], self.crc32)
        self.size += count
        return count


def _fill(descriptor: int, source: Writer | Buffer) -> Written:
    sums = _Sums(descriptor)
    file = io.BufferedWriter(sums, _CHUNK)
    try:
        if callable(source):
            source(file)
        else:
            view = memoryview(source).cast("B")
            for start in range(0, len(view), 8 * _CHUNK):
                file.write(view[start : start + 8 * _CHUNK])
        if not file.closed:
            file.flush()
    except Exception as error:
        if sums.failure is None:
            raise WriterFailed(error) from None
        if error is not sums.failure:
            raise sums.failure from error
        raise
    finally:
        sums.discard = True  # what an error has left in the buffer
        file.close()
    if sums.failure is not None:
        raise sums.failure
    return Written(sums.size, sums.crc32)


def _content(descriptor: int) -> Written:
    size, crc32, buffer = 0, 0, bytearray(_CHUNK)
    view = memoryview(buffer)
    while count := os.readv(descriptor, [buffer]):
        crc32 = zlib.crc32(view[:count], crc32)
        size += count
    return Written(size, crc32)


def _forget_cached(descriptor: int) -> None:
    """Ask that the file be read back from the disk and not from memory."""
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
