"""OffloadFolder: a process's own folder for what it keeps on disk, gone when the process is.

The files have no names once they are open, so the system frees their space however the process ends. What a killed
process leaves, an empty folder at most, the next one removes.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

from genwright.errors import UserError
from genwright.home import cache_folder
from genwright.placement.disk import DiskFile, TransferThreads, round_up

PREFIX, LOCK = "genwright-offload-", "lock"


def default_folder() -> Path:
    return cache_folder() / "offload"


def free_space(parent: Path | None) -> int:
    """Bytes that are free where an offload folder would be made; None is the default place."""
    place = (parent or default_folder()).absolute()
    there = next(each for each in (place, *place.parents) if os.path.exists(each))
    if not there.is_dir():
        raise UserError(f"Offload folder {place} cannot be used: {there} is not a folder.")
    found = os.statvfs(there)
    return found.f_bavail * found.f_frsize


def check_space(parent: Path | None, needed: int) -> int:
    """Bytes that are left there beside those that are needed."""
    if needed > (free := free_space(parent)):
        raise UserError(
            f"Offloading needs {needed:,} bytes in {parent or default_folder()}, but {free:,} bytes are free; "
            "make room or choose another folder with --offload-dir."
        )
    return free - needed


class OffloadFolder:
    """Files on disk for a model's weights, cache and activations, checked for space before work starts."""

    def __init__(self, parent: Path | None, needed: int) -> None:
        """Make a folder in `parent`, by default in the cache folder, if `needed` bytes are free there."""
        parent = parent or default_folder()
        try:
            check_space(parent, needed)
            parent.mkdir(parents=True, exist_ok=True)
            _reclaim(parent)
            self.path, lock = _make_locked(parent)
        except OSError as error:
            raise UserError(f"Offload folder {parent} cannot be used: {error.strerror}.") from error
        self._threads = TransferThreads()
        self._resources = ExitStack()  # closed in reverse: the lock last
        self._resources.callback(os.close, lock)
        self._resources.callback(shutil.rmtree, self.path, ignore_errors=True)
        self._clean = weakref.finalize(self, _clean, os.getpid(), self._threads, self._resources)

    def create(self, name: str, size: int) -> DiskFile:
        """A new file of zeros whose space is reserved."""
        path, size = self.path / name, round_up(max(size, 1))
        try:
            check_space(self.path, size)
            with ExitStack() as failed:
                buffered = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                failed.callback(os.close, buffered)
                try:
                    os.truncate(buffered, size)
                    file = DiskFile(path, size, buffered, self, self._threads)
                finally:
                    path.unlink()
                failed.pop_all()
                for descriptor in file.descriptors:
                    failed.callback(os.close, descriptor)
                os.posix_fallocate(buffered, 0, size)  # of a file without a name, because it may take long
                self._resources.push(failed.pop_all())
        except OSError as error:
            raise UserError(f"Offload file {path} of {size:,} bytes cannot be made: {error.strerror}.") from error
        return file

    def close(self) -> None:
        """Cancel the requests that have not started, wait for the others, and remove everything."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._clean()


def _clean(process: int, threads: TransferThreads, resources: ExitStack) -> None:
    if os.getpid() == process:  # a fork's copy of the folder is not its own
        # No request is in flight, since each holds its file, which holds the folder; but a request's own thread may
        # drop the last reference, and cannot wait for itself.
        threads.shutdown(wait=False)
        resources.close()


def _make_locked(parent: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock, which the system releases when the process ends."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with suppress(FileNotFoundError), ExitStack() as failed:  # another process has just removed the folder
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            failed.callback(os.close, lock)
            if _try_lock(lock) and os.fstat(lock).st_nlink:
                failed.pop_all()
                return folder, lock


def _reclaim(parent: Path) -> None:
    """Remove the folders whose locks nobody holds: their processes have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR)
        except FileNotFoundError:
            with suppress(OSError):
                folder.rmdir()  # its process ended, or will notice, before it made the lock
            continue
        except OSError:
            continue  # another user's
        if _try_lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
