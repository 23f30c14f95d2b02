"""Imports torch once, then forks a child for each request that the hub passes on. See __init__.py.

python zygote.py SOCKET PRELUDE
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import marshal
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import types
import weakref

_PRELOADED = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.nn.parallel",
    "torch._dynamo",  # by the first optimizer, for a second and a half
    "numpy",
    "pytest",
)


# What is taken apart at the end of a child, as in a started process: it may hold process groups.
_TAKEN_APART = ("__main__", "torch.distributed.distributed_c10d", "torch_cgx", "cgx_utils")


class _Kept:
    """Modules that the zygote has imported. The end of a child would take them apart, object by
    object, on pages that it shares with the zygote: a quarter of a second.
    """

    names: tuple[str, ...] = ()
    modules: list[object] = []

    @classmethod
    def leave(cls):
        for name in cls.names:
            if name in sys.modules and not name.startswith(_TAKEN_APART):
                cls.modules.append(sys.modules.pop(name))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(cls.modules))


def prepare(prelude):
    """Imports. RuntimeError where that leaves a second thread, which no child would have."""
    gc.disable()  # imports make much that stays, and no garbage worth a look at all of it
    builtin = set(sys.modules)
    atexit.register(_Kept.leave)  # the first one, so that it is called last
    if prelude:
        exec(prelude, {"__name__": "prelude"})
    import torch  # noqa: F401

    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("torch_cgx")
    for name in _PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    _keep_name()
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"warm start: {len(threads)} threads after the imports; allowed: 1")
    for one in weakref.finalize._registry:  # torch's libraries of operators
        one.atexit = False
    _Kept.names = tuple(name for name in sys.modules if name not in builtin)
    # Destructors of what was loaded up to here are left out; those of a child's own libraries, and
    # what it has registered, come before.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    gc.freeze()
    gc.enable()


class Request:
    def __init__(self, data, files):
        self.connection = socket.socket(fileno=files[0])
        self.files = files[1:]
        self.said = marshal.loads(data)

    def close(self):
        for file in self.files:
            os.close(file)


def serve(hub):
    """Forks for each request until the hub ends; returns in a child only, with its request."""
    wakeup, wakes = os.pipe()
    for end in (wakeup, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller = select.poll()
    poller.register(hub, select.POLLIN)
    poller.register(wakeup, select.POLLIN)
    clients = {}  # by the file number of the connection: (connection, pid, whether it has a group)
    while True:
        for number, _ in poller.poll():
            if number == hub.fileno():
                data, files, _, _ = socket.recv_fds(hub, 1 << 20, 253)
                if not data:
                    for _, pid, group in clients.values():
                        _send(pid, group, signal.SIGKILL)
                    for _, pid, _ in clients.values():
                        os.waitpid(pid, 0)
                    os._exit(0)
                request = Request(data, files)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other, _, _ in clients.values():
                        other.close()
                    for end in (wakeup, wakes):
                        os.close(end)
                    request.connection.close()
                    return request
                request.close()
                leads = request.said["session"] == request.said["pid"]
                clients[request.connection.fileno()] = (request.connection, pid, leads)
                poller.register(request.connection, select.POLLIN)
            elif number == wakeup:
                with contextlib.suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                _reap(clients, poller)
            elif number in clients:
                connection, pid, group = clients[number]
                try:
                    heard = connection.recv(64)
                except OSError:
                    heard = b""
                if heard:
                    _send(pid, group, marshal.loads(heard))
                else:  # the client was killed
                    _send(pid, group, signal.SIGKILL)
                    poller.unregister(number)


def _send(pid, group, number):
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, number)


def _reap(clients, poller):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for number, (connection, child, _) in list(clients.items()):
            if child == pid:
                with contextlib.suppress(OSError):
                    connection.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
                with contextlib.suppress(KeyError):
                    poller.unregister(number)
                connection.close()
                del clients[number]


def _enter(said):
    """The client's namespaces, where they are not this process's."""
    for name, link in said["namespaces"].items():
        if os.readlink(f"/proc/self/ns/{name}") == link:
            continue
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        file = os.open(f"/proc/{said['pid']}/ns/{name}", os.O_RDONLY)
        if libc.setns(file, 0):
            number = ctypes.get_errno()
            raise OSError(number, f"warm start: namespace {name}: {os.strerror(number)}")
        os.close(file)


def become(request):
    """Gives this process what a process started by the client would have."""
    said = request.said
    # Before it is in the client's namespaces, where the test bed asks whose it is.
    with open("/proc/self/comm", "w") as file:
        file.write(f"warm-{said['pid']}")
    # File numbers: first out of the way, then where the client had them.
    high = [os.dup2(file, 600 + index) for index, file in enumerate(request.files)]
    for file in request.files:
        os.close(file)
    for file, number in zip(high, said["files"], strict=True):
        os.dup2(file, number, inheritable=True)
        os.close(file)
    for number in {0, 1, 2} - set(said["files"]):
        with contextlib.suppress(OSError):
            os.close(number)
    if said["session"] == said["pid"]:
        os.setsid()
    elif said["session"] == os.getsid(0):
        with contextlib.suppress(OSError):
            os.setpgid(0, said["group"])
    _enter(said)
    os.chdir(said["folder"])
    if "multiprocessing.process" in sys.modules:  # it notes the folder when it is imported
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = said["folder"]
    os.umask(said["umask"])
    os.nice(said["nice"] - os.nice(0))
    os.sched_setaffinity(0, said["affinity"])
    for which, soft, hard in said["limits"]:
        if resource.getrlimit(which) != (soft, hard):
            resource.setrlimit(which, (soft, hard))
    for number in said["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, said["blocked"])
    os.environ.clear()
    os.environ.update(said["environment"])
    if nested := said["environment"].get("CGX_TEST_WARM_NESTED"):
        plain = os.path.join(os.path.dirname(said["hub"]), "python")
        sys.executable = plain if nested == "1" else nested
        if "multiprocessing.spawn" in sys.modules:  # it notes the program when it is imported
            sys.modules["multiprocessing.spawn"].set_executable(sys.executable)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _keep_name():
    """The name of the main thread stays, also where torchrun gives it another: the test bed finds
    the client by it.
    """
    import torch.multiprocessing

    give = torch.multiprocessing._set_thread_name

    def set_thread_name(name):
        if threading.get_native_id() != os.getpid():
            give(name)

    torch.multiprocessing._set_thread_name = set_thread_name


def _unbuffered():
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        raw.name = f"<{name}>"
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = io.TextIOWrapper(raw, "utf-8", errors, write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(said):
    """The program, as `__main__`."""
    arguments = list(said["arguments"])
    if arguments[:1] == ["-u"]:
        arguments.pop(0)
        _unbuffered()
    elif said["environment"].get("PYTHONUNBUFFERED"):
        _unbuffered()
    first = os.path.abspath(__file__).rpartition(os.sep)[0]
    own = os.environ.get("PYTHONPATH", "")
    here = len(list(filter(None, _PYTHONPATH.split(os.pathsep))))
    base = [one for one in sys.path if one != first]
    sys.path[:] = [*filter(None, own.split(os.pathsep)), *base[here:]]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if arguments[:1] == ["-c"]:
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    elif arguments[:1] == ["-m"]:
        import runpy

        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy._run_module_as_main(arguments[1], alter_argv=True)
    elif arguments and not arguments[0].startswith("-"):
        script = arguments[0]
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        sys.argv = arguments
        main.__file__ = script
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        exec(code, main.__dict__)
    else:
        sys.exit(
            f"warm start: arguments {arguments}; allowed: [-u] -c CODE, -m MODULE, or a script"
        )


def child(request, failure):
    """Runs the program; returns for a normal end of the interpreter, with what runs at exit.
    `failure`: of the imports, shown by every child.
    """
    try:
        become(request)
        if failure is not None:
            raise failure
        run(request.said)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error = error.with_traceback(trace)
        # As the interpreter does it; what runs at exit may look for them.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.last_exc = error
        sys.excepthook(type(error), error, trace)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None


_PYTHONPATH = os.environ.get("PYTHONPATH", "")

if __name__ == "__main__":
    _hub = socket.socket(fileno=int(sys.argv[1]))
    _hub.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    _failure = None
    try:
        prepare(sys.argv[2])
    except Exception as _error:
        _failure = _error
    _request = serve(_hub)
    _hub.close()
    child(_request, _failure)
