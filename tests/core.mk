# CORE: the engine's sources, which need neither torch nor MPI. For the tests that build it by
# themselves (native, fuzz); ROOT is the top of the tree.
CORE := $(shell find $(ROOT)/csrc/base $(ROOT)/csrc/codec $(ROOT)/csrc/comm $(ROOT)/csrc/device \
  $(ROOT)/csrc/reduce -name '*.cc' -not -path '*/mpi/*' | sort)
