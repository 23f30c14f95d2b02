# CORE: the engine's sources, which need neither torch nor MPI. For the tests that build it by
# themselves (native, fuzz); ROOT is the top of the tree. MACHINERY: what they and tests._machinery
# share, of tests/machinery; it is included as "machinery/...".
CORE := $(shell find $(ROOT)/csrc/base $(ROOT)/csrc/codec $(ROOT)/csrc/comm $(ROOT)/csrc/device \
  $(ROOT)/csrc/reduce -name '*.cc' -not -path '*/mpi/*' \
  -not -path '*/comm/gloo/*' -not -path '*/comm/nccl/*' | sort)
MACHINERY := $(ROOT)/tests/machinery/mock_network.cc $(ROOT)/tests/machinery/stress.cc
INCLUDES := -I$(ROOT)/csrc -I$(ROOT)/tests

# $(call units,SOURCES): the files that include them, several each, in OUT/csrc and OUT/tests.
units = $(or $(shell python3 $(ROOT)/tests/units.py $(OUT) $(1)),$(error tests/units.py has failed, see above))
