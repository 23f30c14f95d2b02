"""Knows the zygotes of a session; hands each request to the right one. See __init__.py.

python -I -S hub.py ADDRESS        # says "ready"; ends at the end of its stdin
"""

import marshal
import os
import select
import socket
import subprocess
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# Beginnings of variables read before the first line of a program, or by `import torch` ...
_EARLY = (
    *(
        "LD_",
        "MALLOC_",
        "GLIBC_",
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "LC_",
        "LANG",
        "HOME",
    ),
    *("TORCH_", "PYTORCH_", "ATEN_", "CUDA_", "PYTHON", "COVERAGE_", "GCOV_", "STUB_DRIVER_"),
)
# ... but for what the child takes from the client itself, or a program reads later.
_LATER = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHON_EXEC", "TORCH_NCCL_", "TORCH_EXTENSIONS_DIR"),
    "TORCH_FR_",  # when a first group is created
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),  # of Intel's OpenMP; scikit-learn sets them
)


def package(request):
    """The folder by which the client's torch_cgx is found, "" for an installed one."""
    arguments = [one for one in request["arguments"] if one != "-u"]
    path = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    if arguments and arguments[0] in ("-c", "-m"):
        path.insert(0, request["folder"])
    for folder in filter(None, path):
        if os.path.exists(os.path.join(folder, "torch_cgx", "__init__.py")):
            return os.path.abspath(folder)
    return ""


def _folders(path):
    """Each once: mpirun repeats its own."""
    return os.pathsep.join(dict.fromkeys(filter(None, path.split(os.pathsep))))


def variant(request):
    """What tells zygotes apart; the last part holds the variables that are read early."""
    early = [
        (name, _folders(value) if name == "LD_LIBRARY_PATH" else value)
        for name, value in sorted(request["environment"].items())
        if name.startswith(_EARLY) and not name.startswith(_LATER)
    ]
    head = (request["interpreter"], package(request), request["prelude"])
    return (*head, tuple(early))


def start(key):
    """A new zygote; the socket to it."""
    interpreter, package, prelude, early = key
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    names = ("PATH", "TMPDIR", "USER", "LOGNAME")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= dict(early)
    # One thread: a second would not live on in a child.
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    if package:
        environment["PYTHONPATH"] = package
    script = os.path.join(_HERE, "zygote.py")
    subprocess.Popen(
        [interpreter, script, str(theirs.fileno()), prelude],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        cwd="/",
    )
    theirs.close()
    return ours


def _received(connection):
    data, files, _, _ = socket.recv_fds(connection, 1 << 20, 250)
    return data, files


def serve(listener, zygotes):
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(listener, select.POLLIN)
    waiting = {}  # clients that have not said yet what they want
    while True:
        for number, _ in poller.poll():
            if number == 0:
                if not os.read(0, 1):
                    return
            elif number == listener.fileno():
                client, _ = listener.accept()
                waiting[client.fileno()] = client
                poller.register(client, select.POLLIN)
            else:
                client = waiting.pop(number)
                poller.unregister(number)
                _pass_on(client, zygotes)
                client.close()


def _pass_on(client, zygotes):
    data, files = _received(client)
    try:
        if not data:
            return  # killed before it said anything
        key = variant(marshal.loads(data))
        for again in (False, True):
            if key not in zygotes:
                zygotes[key] = start(key)
            try:
                socket.send_fds(zygotes[key], [data], [client.fileno(), *files])
                return
            except OSError:  # it has ended
                zygotes.pop(key).close()
                if again:
                    raise
    finally:
        for file in files:
            os.close(file)


def main():
    address = sys.argv[1]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listener.bind(address)
    listener.listen(512)
    print("ready", flush=True)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
    zygotes = {}  # by variant: the socket
    serve(listener, zygotes)
    for one in zygotes.values():
        one.close()
    # Their CPU time counts as this process's children's, so that `time pytest` tells all of it.
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass


main()
