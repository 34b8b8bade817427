"""Mounts of a run: the system read-only, private folders over those of the user, and layers that catch what is written.

This runs as the first process of new user, mount and process namespaces, before the script starts.
"""

import ctypes
import os
import stat
from contextlib import suppress
from pathlib import Path

from genwright.inspect.isolation.overlay import Mount, link_files, mount_point

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MS_RELATIME, ST_RELATIME = 1 << 21, 4096
KEPT = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: the same bits in statvfs and in mount
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "kfd", "dri")
# What the owner of the machine may write below /proc although it has no capability in this namespace.
SYSTEM = ("sys", "sysrq-trigger", "irq", "bus", "fs")

_libc = ctypes.CDLL(None, use_errno=True)


def build_view(mounts: list[Mount], script_folder: str, work: str, shm_bytes: int) -> None:
    """Mount everything; the working directory shows the layer of the script's folder, or links to its files."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    writable = [each.source for each in mounts if each.kind == "write"]
    for path in writable:
        mount(path, path, None, MS_BIND | MS_REC)
    # Files are opened before anything covers them; a descriptor also spares the escapes of overlayfs's options.
    plan = [_Opened(each) for each in mounts]
    devices = _devices()
    _make_read_only()
    for path in writable:
        mount(None, path, None, MS_REMOUNT | MS_BIND | _flags(path))
    _mount_devices(devices, shm_bytes)
    layers = [each.mount.target for each in plan if each.place()]
    if script_folder in layers:
        mount(script_folder, work, None, MS_BIND)
    else:
        link_files(Path(script_folder), Path(work))
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    for name in SYSTEM:
        if os.path.exists(f"/proc/{name}"):
            mount(f"/proc/{name}", f"/proc/{name}", None, MS_BIND | MS_REC)
            mount(None, f"/proc/{name}", None, MS_REMOUNT | MS_BIND | MS_RDONLY | _flags(f"/proc/{name}"))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    if _libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


class _Opened:
    """A mount whose folders are open, so that it can be made after other mounts have hidden them."""

    def __init__(self, planned: Mount) -> None:
        self.mount = planned
        self.folders = [_open(path) if path else "" for path in (planned.source, planned.upper, planned.scratch)]

    def place(self) -> bool:
        """Make the mount, and say whether it is a layer; one that the system refuses becomes a read-only folder."""
        target, (source, upper, scratch) = self.mount.target, self.folders
        _make_mount_point(target, source)
        if self.mount.kind == "layer":
            options = f"lowerdir={source},upperdir={upper},workdir={scratch},userxattr"
            with suppress(OSError):
                mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
                return True
        if self.mount.kind == "empty":
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        else:
            mount(source, target, None, MS_BIND | MS_REC)
        return False


def _open(path: str) -> str:
    return f"/proc/self/fd/{os.open(path, os.O_PATH)}"


def _flags(path: str) -> int:
    """The flags of a mount, which a remount in a user namespace must not drop."""
    flags = os.statvfs(path).f_flag
    return flags & KEPT | (MS_RELATIME if flags & ST_RELATIME else 0)


def _make_read_only() -> None:
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        point = mount_point(line)
        try:
            found = os.statvfs(point).f_flag
        except OSError:
            continue  # a mount that this user cannot reach, or that another one covers
        if not found & MS_RDONLY:
            mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | _flags(point))


def _make_mount_point(target: str, source: str) -> None:
    if os.path.exists(target):
        return
    if source and not os.path.isdir(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    else:
        os.makedirs(target, exist_ok=True)


def _devices() -> dict[str, str]:
    """The devices that a run may open, such as a GPU, but no disk: name and open descriptor."""
    found = {path.name: path for pattern in DEVICES for path in Path("/dev").glob(pattern)}
    return {name: _open(str(path)) for name, path in found.items()}


def _mount_devices(devices: dict[str, str], shm_bytes: int) -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, opened in devices.items():
        if stat.S_ISDIR(os.stat(opened).st_mode):
            os.mkdir(f"/dev/{name}")
        else:
            Path("/dev", name).touch()
        mount(opened, f"/dev/{name}", None, MS_BIND | MS_REC)
    for name in ("shm", "pts"):
        os.mkdir(f"/dev/{name}")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={shm_bytes}")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")
    for name, to in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{to}", f"/dev/{name}")
