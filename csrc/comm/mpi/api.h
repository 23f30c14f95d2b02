/* What the engine asks of an MPI library, as a table of C functions.
 *
 * The engine (torch_cgx._C) is built without any MPI; torch_cgx._mpi_openmpi and
 * torch_cgx._mpi_mpich, built with the mpicc of their library, hand it this table in a capsule.
 * Both sides include this file. Handles of MPI are int in one library and pointers in the other;
 * here they are the same 64 bits.
 *
 * Unless said otherwise functions return an MPI error code, 0 for success, may be called from any
 * thread at once (MPI_THREAD_MULTIPLE), and neither throw nor end the process. */
#pragma once

#include <stdint.h>

/* Goes up with every change of the table: modules of another version are refused. */
#define CGX_MPI_API_VERSION 1u
/* Name of the capsule. */
#define CGX_MPI_API_CAPSULE "torch_cgx.mpi_api"

enum { CGX_MPI_ANY_PEER = -1 };
enum CgxMpiThreadLevel {
  CGX_MPI_SINGLE = 0,
  CGX_MPI_FUNNELED = 1,
  CGX_MPI_SERIALIZED = 2,
  CGX_MPI_MULTIPLE = 3
};
enum CgxMpiErrorKind { CGX_MPI_OTHER_ERROR = 0, CGX_MPI_TRUNCATED = 1, CGX_MPI_PEER_LOST = 2 };

typedef void (*CgxMpiHook)(void* context);

/* How a request has ended. */
typedef struct CgxMpiEnd {
  int index; /* in the array of requests that were tested */
  int error;
  int cancelled;
  int bytes; /* received */
} CgxMpiEnd;

typedef struct CgxMpiApi {
  uint32_t version; /* CGX_MPI_API_VERSION */
  uint32_t bytes;   /* sizeof(CgxMpiApi) */
  const char* kind; /* "openmpi", "mpich" */

  /* --- life. Flags are 0 or 1; levels are CgxMpiThreadLevel. */
  int (*state)(int* initialized, int* finalized);
  int (*init)(int* level); /* MPI_Init_thread with MPI_THREAD_MULTIPLE */
  int (*thread_level)(int* level);
  int (*world)(int* rank, int* size, int* largest_tag);
  int (*library_version)(char* text, int capacity);
  int (*finalize)(void);
  /* `hook` runs at the beginning of MPI_Finalize, from any caller, while MPI still works. */
  int (*on_finalize)(CgxMpiHook hook, void* context);
  /* `hook` runs once when the interpreter has ended, without Python, and before exit functions that
   * were registered earlier. */
  void (*at_exit)(CgxMpiHook hook, void* context);
  /* 1 once the interpreter ends because of an uncaught exception. */
  int (*exit_in_error)(void);

  /* --- transfers. Codes of errors are returned, as MPI_ERRORS_RETURN has it. */
  /* Waits until all `count` members, ranks of MPI_COMM_WORLD, have called it with the same tag. */
  int (*create_group)(const int* world_ranks, int count, int tag, uint64_t* comm);
  int (*isend)(uint64_t comm, const void* data, int bytes, int peer, int tag, uint64_t* request);
  /* `peer` may be CGX_MPI_ANY_PEER. */
  int (*irecv)(uint64_t comm, void* data, int bytes, int peer, int tag, uint64_t* request);
  /* Tests all requests; `ends` has room for `count` and gets `*ended` entries. Requests that have
   * ended must not be used any more. Lets MPI move its messages on, also with a `count` of 0. */
  int (*test_some)(int count, uint64_t* requests, int* ended, CgxMpiEnd* ends);
  /* Asks for the end of a receive that no message has met; it still has to be tested. */
  int (*cancel)(uint64_t* request);

  /* --- errors */
  int (*error_kind)(int error); /* CgxMpiErrorKind */
  void (*error_text)(int error, char* text, int capacity);
} CgxMpiApi;
