"""However a process ends, its folder is gone at the next start at the latest, and nobody else's is."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from genwright.errors import UserError
from genwright.home import cache_folder
from genwright.placement.offload_folder import OffloadFolder

SIZE = 1 << 20
CHILD = """
import signal, sys, time, torch
from pathlib import Path
from genwright.placement.offload_folder import OffloadFolder
if sys.argv[2] == "like the command line":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
folder = OffloadFolder(Path(sys.argv[1]), 1 << 26)
file = folder.create("weights", 1 << 26)
ones = torch.ones(1 << 26, dtype=torch.uint8)
while True:
    futures = [file.write_from(ones) for _ in range(4)]
    futures[0].result()
    print(folder.path.name, flush=True)
    [future.result() for future in futures]
"""


@contextmanager
def child(parent: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that writes to its folder all the time, and the folder's name."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, parent, *(arguments or ("",))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def names(parent: Path) -> set[str]:
    return {path.name for path in parent.iterdir()}


def free(parent: Path) -> int:
    found = os.statvfs(parent)
    return found.f_bavail * found.f_frsize


def test_live_processes_keep_their_folders_and_killed_ones_do_not(tmp_path: Path) -> None:
    ours = OffloadFolder(tmp_path, SIZE)
    with child(tmp_path) as (killed, its_name), child(tmp_path) as (_, live):
        assert names(tmp_path) == {ours.path.name, its_name, live}
        assert not [path for name in (its_name, live) for path in (tmp_path / name).iterdir() if path.name != "lock"]
        killed.kill()
        killed.wait()
        third = OffloadFolder(tmp_path, SIZE)
        assert names(tmp_path) == {ours.path.name, third.path.name, live}
        third.close()
    ours.close()
    OffloadFolder(tmp_path, SIZE).close()
    assert not names(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_leave_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with child(tmp_path, "like the command line") as (process, name):
        assert names(tmp_path) == {name}
        process.send_signal(number)
        process.wait()
    assert not names(tmp_path)


def test_many_start_and_end_at_once(tmp_path: Path) -> None:
    """No folder is taken for a dead process's between its creation and its lock."""

    def start_and_end(_: int) -> bool:
        folder = OffloadFolder(tmp_path, SIZE)
        held = names(folder.path) == {"lock"}
        folder.close()
        return held

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(start_and_end, range(500)))
    assert not names(tmp_path)


def test_leftovers_are_reclaimed_whatever_they_say(tmp_path: Path) -> None:
    """A lock is held by a process and not by a number, so a recycled process id does not count."""
    for name, files in {"genwright-offload-dead": ["lock", "weights"], "genwright-offload-early": []}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text(str(os.getpid()))
    (tmp_path / "mine.txt").write_text("a user's own file")
    (tmp_path / "genwright-offload-mine").mkdir()
    (tmp_path / "genwright-offload-mine" / "notes.txt").write_text("a user's own folder: without a lock, never of ours")
    folder = OffloadFolder(tmp_path, SIZE)
    assert names(tmp_path) == {"mine.txt", "genwright-offload-mine", folder.path.name}
    folder.close()


def test_nothing_is_left_open(tmp_path: Path) -> None:
    def opened() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = opened()
    folder = OffloadFolder(tmp_path, SIZE)
    file = folder.create("weights", SIZE)
    for future in [file.write_from(torch.ones(SIZE, dtype=torch.uint8)) for _ in range(20)]:
        future.result()
    folder.close()
    folder.close()
    assert opened() == before
    assert not names(tmp_path)
    with pytest.raises(RuntimeError, match="after shutdown"):
        file.read_into(torch.empty(1))


def test_requests_of_a_closed_folder_end(tmp_path: Path) -> None:
    folder = OffloadFolder(tmp_path, 16 * SIZE)
    file, ones = folder.create("weights", 16 * SIZE), torch.ones(16 * SIZE, dtype=torch.uint8)
    futures = [file.write_from(ones) for _ in range(50)]
    folder.close()
    assert all(future.done() for future in futures)
    assert isinstance(futures[-1].exception(), UserError)


def test_garbage_collection(tmp_path: Path) -> None:
    """A file keeps its folder; the last request may end after both are dropped."""
    file = OffloadFolder(tmp_path, SIZE).create("weights", SIZE)
    gc.collect()
    ones = torch.ones(SIZE, dtype=torch.uint8)
    file.write_from(ones).result()
    assert len(names(tmp_path)) == 1
    future = file.write_from(ones)
    del file
    future.result()
    for thread in threading.enumerate():
        if thread.name.startswith("offload"):
            thread.join()
    assert not names(tmp_path)


def test_a_fork_does_not_clean_up_for_its_parent(tmp_path: Path) -> None:
    folder = OffloadFolder(tmp_path, SIZE)
    if (process := os.fork()) == 0:
        with suppress(BaseException):
            del folder
            gc.collect()
        os._exit(0)
    os.waitpid(process, 0)
    assert names(tmp_path) == {folder.path.name}
    folder.close()


def test_too_little_space_is_refused_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=3, f_frsize=4096))
    words = (
        rf"^Offloading needs 20,000 bytes in {tmp_path}, but 12,288 bytes are free; "
        r"make room or choose another folder with --offload-dir\.$"
    )
    with pytest.raises(UserError, match=words):
        OffloadFolder(tmp_path, 20_000)
    assert not names(tmp_path)
    folder = OffloadFolder(tmp_path, 12_288)
    with pytest.raises(UserError, match="but 12,288 bytes are free"):
        folder.create("weights", 12_289)
    folder.close()


def test_a_quota_is_met_when_a_file_is_made(tmp_path: Path) -> None:
    folder = OffloadFolder(tmp_path, SIZE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, before[1]))
    try:
        with pytest.raises(UserError, match=r"weights of 2,097,152 bytes cannot be made: File too large\.$"):
            folder.create("weights", 2 * SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(folder.path) == {"lock"}
    folder.create("weights", 2 * SIZE)
    folder.close()


def test_space_is_reserved_for_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = OffloadFolder(tmp_path, SIZE), list[set[str]]()

    def reserve(descriptor: int, offset: int, size: int) -> None:
        seen.append(names(folder.path))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UserError, match=r"cannot be made: No space left on device\.$"):
        folder.create("weights", SIZE)
    assert seen == [{"lock"}], "a process that is killed meanwhile leaves nothing"
    assert os.listdir("/proc/self/fd") == before
    folder.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_small_disk(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(UserError, match="but 1,048,576 bytes are free"):
            OffloadFolder(tmp_path, SIZE + 1)
        folder = OffloadFolder(tmp_path, SIZE // 2)
        file, ones = folder.create("weights", SIZE // 2), torch.ones(SIZE // 2, dtype=torch.uint8)
        with pytest.raises(UserError, match="bytes are free"):
            folder.create("cache", SIZE // 2 + 8192)
        file.write_from(ones).result()
        folder.close()
        assert free(tmp_path) == SIZE
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_unusable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/folder cannot be used: .*/file is not a folder\.$"):
        OffloadFolder(tmp_path / "file" / "folder", SIZE)
    with pytest.raises(UserError, match=r"/file is not a folder\.$"):
        OffloadFolder(tmp_path / "file", SIZE)
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    folder = OffloadFolder(None, SIZE)
    assert folder.path.parent == cache_folder() / "offload"
    folder.close()
