// torch_cgx._mpi_openmpi and torch_cgx._mpi_mpich: the functions of comm/mpi/api.h over the MPI
// library whose mpicc compiles this file. Plain Python C API, no C++ library: mpicc links C.
//
// CGX_MPI_MODULE (the name of the module, e.g. _mpi_openmpi) and CGX_MPI_KIND ("openmpi") are set
// by setup.py.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/api.h"

namespace {

static_assert(sizeof(MPI_Comm) <= sizeof(uint64_t) && sizeof(MPI_Request) <= sizeof(uint64_t));

constexpr int kBatch = 64;  // requests tested at once

template <typename Handle>
uint64_t pack(Handle handle) {
  uint64_t word = 0;
  memcpy(&word, &handle, sizeof handle);
  return word;
}

template <typename Handle>
Handle unpack(uint64_t word) {
  Handle handle;
  memcpy(&handle, &word, sizeof handle);
  return handle;
}

struct Hook {
  CgxMpiHook function = nullptr;
  void* context = nullptr;
};

Hook finalize_hook;
Hook exit_hook;
int in_error = 0;

int level_of(int provided) {
  if (provided == MPI_THREAD_MULTIPLE) return CGX_MPI_MULTIPLE;
  if (provided == MPI_THREAD_SERIALIZED) return CGX_MPI_SERIALIZED;
  return provided == MPI_THREAD_FUNNELED ? CGX_MPI_FUNNELED : CGX_MPI_SINGLE;
}

int state(int* initialized, int* finalized) {
  const int error = MPI_Initialized(initialized);
  return error != MPI_SUCCESS ? error : MPI_Finalized(finalized);
}

int init(int* level) {
  // Plug-ins of some versions of Open MPI look for the library's symbols among the global ones;
  // Python has loaded it privately.
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &self) != 0 && self.dli_fname != nullptr) {
    dlopen(self.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
  }
  int provided = MPI_THREAD_SINGLE;
  const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  *level = level_of(provided);
  // The code that initialises MPI chooses the effect of errors; the default ends the process.
  if (error == MPI_SUCCESS) return MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return error;
}

int thread_level(int* level) {
  int provided = MPI_THREAD_SINGLE;
  const int error = MPI_Query_thread(&provided);
  *level = level_of(provided);
  return error;
}

int world(int* rank, int* size, int* largest_tag) {
  int error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (error == MPI_SUCCESS) error = MPI_Comm_size(MPI_COMM_WORLD, size);
  *largest_tag = 32767;  // what every MPI has
  int found = 0;
  int* value = nullptr;
  if (error == MPI_SUCCESS) error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  if (error == MPI_SUCCESS && found != 0) *largest_tag = *value;
  return error;
}

void copy_line(const char* from, char* text, int capacity) {
  int i = 0;
  for (; i < capacity - 1 && from[i] != '\0' && from[i] != '\n'; ++i) text[i] = from[i];
  text[i] = '\0';
}

int library_version(char* text, int capacity) {
  char buffer[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
  int length = 0;
  const int error = MPI_Get_library_version(buffer, &length);
  copy_line(buffer, text, capacity);
  return error;
}

int finalize() { return MPI_Finalize(); }

int run_finalize_hook(MPI_Comm, int, void*, void*) {
  if (finalize_hook.function != nullptr) finalize_hook.function(finalize_hook.context);
  return MPI_SUCCESS;
}

// MPI_Finalize begins with deleting the attributes of MPI_COMM_SELF (MPI 4.1, 11.2.4).
int on_finalize(CgxMpiHook hook, void* context) {
  finalize_hook = {hook, context};
  int key = MPI_KEYVAL_INVALID;
  const int error =
      MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &run_finalize_hook, &key, nullptr);
  return error != MPI_SUCCESS ? error : MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

void at_exit(CgxMpiHook hook, void* context) { exit_hook = {hook, context}; }

void run_exit_hook() {
  const Hook hook = exit_hook;
  exit_hook = {};
  if (hook.function != nullptr) hook.function(hook.context);
}

int exit_in_error() { return in_error; }

int create_group(const int* world_ranks, int count, int tag, uint64_t* comm) {
  MPI_Group everybody = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  int error = MPI_Comm_group(MPI_COMM_WORLD, &everybody);
  if (error == MPI_SUCCESS) error = MPI_Group_incl(everybody, count, world_ranks, &members);
  if (error == MPI_SUCCESS) error = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &made);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
  if (everybody != MPI_GROUP_NULL) MPI_Group_free(&everybody);
  *comm = pack(made);
  return error;
}

int isend(uint64_t comm, const void* data, int bytes, int peer, int tag, uint64_t* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, unpack<MPI_Comm>(comm), &made);
  *request = pack(made);
  return error;
}

int irecv(uint64_t comm, void* data, int bytes, int peer, int tag, uint64_t* request) {
  MPI_Request made = MPI_REQUEST_NULL;
  const int source = peer == CGX_MPI_ANY_PEER ? MPI_ANY_SOURCE : peer;
  const int error = MPI_Irecv(data, bytes, MPI_BYTE, source, tag, unpack<MPI_Comm>(comm), &made);
  *request = pack(made);
  return error;
}

int test_batch(int first, int count, uint64_t* requests, int* ended, CgxMpiEnd* ends) {
  MPI_Request batch[kBatch];
  MPI_Status statuses[kBatch];
  int indices[kBatch];
  for (int i = 0; i < count; ++i) batch[i] = unpack<MPI_Request>(requests[first + i]);
  int found = 0;
  const int error = MPI_Testsome(count, batch, &found, indices, statuses);
  if (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS) {
    int error_class = MPI_SUCCESS;
    MPI_Error_class(error, &error_class);
    if (error_class != MPI_ERR_IN_STATUS) return error;
  }
  for (int i = 0; i < count; ++i) requests[first + i] = pack(batch[i]);
  if (found == MPI_UNDEFINED) found = 0;
  for (int i = 0; i < found; ++i) {
    CgxMpiEnd& end = ends[(*ended)++];
    end.index = first + indices[i];
    end.error = error == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
    end.cancelled = 0;
    end.bytes = 0;
    if (end.error != MPI_SUCCESS) continue;
    MPI_Test_cancelled(&statuses[i], &end.cancelled);
    if (end.cancelled == 0) MPI_Get_count(&statuses[i], MPI_BYTE, &end.bytes);
  }
  return MPI_SUCCESS;
}

int test_some(int count, uint64_t* requests, int* ended, CgxMpiEnd* ends) {
  *ended = 0;
  if (count == 0) {
    int found = 0;
    return MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
  }
  for (int first = 0; first < count; first += kBatch) {
    const int some = count - first < kBatch ? count - first : kBatch;
    const int error = test_batch(first, some, requests, ended, ends);
    if (error != MPI_SUCCESS) return error;
  }
  return MPI_SUCCESS;
}

int cancel(uint64_t* request) {
  MPI_Request handle = unpack<MPI_Request>(*request);
  const int error = MPI_Cancel(&handle);
  *request = pack(handle);
  return error;
}

int error_kind(int error) {
  int error_class = MPI_SUCCESS;
  if (MPI_Error_class(error, &error_class) != MPI_SUCCESS) return CGX_MPI_OTHER_ERROR;
  if (error_class == MPI_ERR_TRUNCATE) return CGX_MPI_TRUNCATED;
  // Codes of fault-tolerant MPI (ULFM), under the name that each library gives them.
#if defined(MPIX_ERR_PROC_FAILED)
  if (error_class == MPIX_ERR_PROC_FAILED) return CGX_MPI_PEER_LOST;
#elif defined(MPI_ERR_PROC_FAILED)
  if (error_class == MPI_ERR_PROC_FAILED) return CGX_MPI_PEER_LOST;
#endif
#if defined(MPI_ERR_PROC_ABORTED)
  if (error_class == MPI_ERR_PROC_ABORTED) return CGX_MPI_PEER_LOST;
#endif
  return CGX_MPI_OTHER_ERROR;
}

void error_text(int error, char* text, int capacity) {
  char buffer[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  if (MPI_Error_string(error, buffer, &length) != MPI_SUCCESS) buffer[0] = '\0';
  copy_line(buffer, text, capacity);
}

const CgxMpiApi table = {
    CGX_MPI_API_VERSION,
    sizeof(CgxMpiApi),
    CGX_MPI_KIND,
    state,
    init,
    thread_level,
    world,
    library_version,
    finalize,
    on_finalize,
    at_exit,
    exit_in_error,
    create_group,
    isend,
    irecv,
    test_some,
    cancel,
    error_kind,
    error_text,
};

PyObject* py_library_version(PyObject*, PyObject*) {
  char text[1024];
  library_version(text, sizeof text);
  return PyUnicode_FromString(text);
}

PyObject* py_is_initialized(PyObject*, PyObject*) {
  int initialized = 0;
  int finalized = 0;
  state(&initialized, &finalized);
  return PyBool_FromLong(initialized);
}

PyObject* py_exit_in_error(PyObject*, PyObject*) {
  in_error = 1;
  Py_RETURN_NONE;
}

PyObject* py_before_finalize(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  run_finalize_hook(MPI_COMM_NULL, MPI_KEYVAL_INVALID, nullptr, nullptr);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"library_version", py_library_version, METH_NOARGS,
     "First line of MPI_Get_library_version(); works before MPI is initialised."},
    {"is_initialized", py_is_initialized, METH_NOARGS,
     "MPI_Initialized(): true also if another package has initialised MPI."},
    {"before_finalize", py_before_finalize, METH_NOARGS,
     "Runs at the beginning of MPI_Finalize: ends all transfers and the engine's thread."},
    {"exit_in_error", py_exit_in_error, METH_NOARGS,
     "Notes that the interpreter ends because of an uncaught exception."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    nullptr,
    "MPI for the engine: `api` is a capsule with the table of comm/mpi/api.h.",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr};

PyObject* make_module() {
  definition.m_name = "torch_cgx._mpi_" CGX_MPI_KIND;
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  PyObject* capsule = PyCapsule_New(const_cast<CgxMpiApi*>(&table), CGX_MPI_API_CAPSULE, nullptr);
  if (capsule == nullptr || PyModule_AddObject(module, "api", capsule) != 0) {
    Py_XDECREF(capsule);
    Py_DECREF(module);
    return nullptr;
  }
  // Python has few places for such functions. The C library calls its own a little later.
  if (Py_AtExit(run_exit_hook) != 0) atexit(run_exit_hook);
  return module;
}

}  // namespace

#define CGX_JOIN(a, b) a##b
#define CGX_INIT(name) CGX_JOIN(PyInit_, name)

PyMODINIT_FUNC CGX_INIT(CGX_MPI_MODULE)(void) { return make_module(); }
