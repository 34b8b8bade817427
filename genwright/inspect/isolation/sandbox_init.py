"""The program that starts a run: it makes the namespaces, mounts and limits, and then becomes the script.

Three processes: the outer one makes the namespaces and waits; the second is the first process of the new process
namespace, so that every other one dies with it; the third executes the script. Without namespaces the outer one
starts the script, and adopts what the script leaves behind.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

from genwright.inspect.isolation.overlay import Mount
from genwright.inspect.isolation.sandbox_mounts import build_view

NEW_MOUNT, NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PARENT_DEATH_SIGNAL, DROP_CAPABILITY, CHILD_SUBREAPER, NO_NEW_PRIVILEGES = 1, 24, 36, 38
CAPABILITIES = 64
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def main(plan_file: int, report: int) -> None:
    """Run `argv` as the plan says; what happens is reported as lines of JSON."""
    os.set_inheritable(report, False)
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    try:
        if plan["namespaces"]:
            _in_namespaces(plan, report)
        else:
            _die_with_parent()
            _prctl(CHILD_SUBREAPER, 1)
            _wait_for(_start(plan, report), report)
            signal.pause()  # the watcher ends what is left, and then this process
    except OSError as error:
        _tell(report, refused=f"{error.filename or 'namespaces'}: {error.strerror}")


def _in_namespaces(plan: dict[str, Any], report: int) -> None:
    user, group = os.getuid(), os.getgid()
    _unshare(NEW_USER | NEW_MOUNT | NEW_PID | NEW_IPC | (0 if plan["network"] else NEW_NET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _die_with_parent()
    init = os.fork()
    if init:
        _tell(report, init=init)
        os.waitpid(init, 0)  # returns when every process of the namespace is dead
        os._exit(0)
    try:
        _die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        mounts = [Mount(**each) for each in plan["mounts"]]
        build_view(mounts, plan["script_folder"], plan["work"], plan["shm_bytes"])
        if not plan["network"]:
            _start_loopback()
        _tell(report, ready=True)
        _wait_for(_start(plan, report), report)
    except OSError as error:
        _tell(report, refused=f"{error.filename or 'namespaces'}: {error.strerror}")
    os._exit(0)


def _start(plan: dict[str, Any], report: int) -> int:
    """Start the script in a process of its own, with its limits and without privileges."""
    script = os.fork()
    if script:
        return script
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if plan["cpu_seconds"]:
            _limit(resource.RLIMIT_CPU, int(plan["cpu_seconds"]) + 2)
        if plan["threads"]:
            _limit(resource.RLIMIT_NPROC, plan["threads"] + plan["others"])
        _prctl(NO_NEW_PRIVILEGES, 1)
        if plan["namespaces"]:
            for capability in range(CAPABILITIES):
                _libc.prctl(DROP_CAPABILITY, capability, 0, 0, 0)  # those that this kernel has
        if sys.platform == "linux":
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # out of memory, the system ends this one first
        _die_with_parent()
        os.chdir(plan["work"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["environment"])
    except (OSError, ValueError) as error:
        _tell(report, not_started=str(error))
    os._exit(127)


def _wait_for(script: int, report: int) -> None:
    pid = 0
    while pid != script:
        pid, status, usage = os.wait4(-1, 0)
    largest = usage.ru_maxrss * (1024 if sys.platform == "linux" else 1)
    left = [name for name in os.listdir("/proc") if name.isdigit()] if os.getpid() == 1 else []
    _tell(report, exit=os.waitstatus_to_exitcode(status), memory=largest, processes=len(left))


def _tell(report: int, **message: Any) -> None:
    os.write(report, json.dumps(message).encode() + b"\n")


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare")


def _die_with_parent() -> None:
    _prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", INTERFACE_UP))
