"""The process that a test starts in place of Python: has the work done by a child of a zygote.

    python -I -S client.py HUB PRELUDE ARGUMENTS...

Imports next to nothing: its start is what a test waits for. See __init__.py.
"""

import _socket
import marshal
import os
import resource
import signal
import sys

# What is read before the child's first line, and has to be as in the client.
_LIMITS = [resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_STACK]
_LIMITS += [resource.RLIMIT_MEMLOCK, resource.RLIMIT_FSIZE]
NAMESPACES = ("net", "uts", "ipc", "mnt")
_FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT",
              "SIGABRT")  # fmt: skip


def _open_files():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the folder's own
        found.append(int(name))
    return found


def main():
    hub, prelude, *arguments = sys.argv[1:]
    files = _open_files()
    umask = os.umask(0o77)
    os.umask(umask)
    request = {
        "hub": hub,
        "interpreter": sys.executable,
        "prelude": prelude,
        "arguments": arguments,
        "files": files,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "umask": umask,
        "nice": os.nice(0),
        "affinity": list(os.sched_getaffinity(0)),
        "limits": [(which, *resource.getrlimit(which)) for which in _LIMITS],
        "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
        "blocked": list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in NAMESPACES},
        "pid": os.getpid(),
        "session": os.getsid(0),
        "group": os.getpgid(0),
    }
    # Python itself ignores these two; a started Python would do so anew.
    request["ignored"] = [int(n) for n in request["ignored"] if n not in (13, 25)]
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 20)

    def forward(number, frame):
        try:
            connection.send(marshal.dumps(number))
        except OSError:
            pass  # the child has ended meanwhile

    try:
        connection.connect(hub)
    except OSError as error:
        sys.exit(f"warm start: no hub at {hub}: {error}")
    for name in _FORWARDED:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    numbers = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)
    connection.sendmsg([marshal.dumps(request)], [rights])
    for file in files:  # so that a reader of a pipe sees its end when the child closes it
        os.close(file)
    heard = connection.recv(4096)
    if not heard:
        os._exit(125)  # the zygote is gone: it has said why on stderr
    status = marshal.loads(heard)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-status, signal.SIG_DFL) if -status not in (9, 19) else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
