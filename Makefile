# Builds, tests and shows Torch-FL from a fresh clone. Needs Python >= 3.10 (with venv), a C++17 compiler and make;
# everything else goes into .venv. What is done already is not done again: stamp files remember it.
#
#   make demo       ResNet-50 on the reference chip: inference and training, checked against the CPU
#   make test       all tests; the last line is pytest's summary
#   make help       the other targets

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= build/dev
JOBS   ?= 2
TORCH  ?= torch==2.13.0
# PyTorch's own index has CPU builds; the Linux build elsewhere brings gigabytes of CUDA with it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

PY     := $(CURDIR)/$(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check
STAMPS := $(VENV)/.stamps
# Profiles registered by the user say nothing about this tree: demo and tests have a home of their own.
HOME_DIR := $(CURDIR)/build/home
# What the OpenCL chip compiles in one run is there for the next.
CACHE_DIR := $(CURDIR)/build/cache
# Intel's OpenCL runtime in a folder of its own: it is large, and binary only.
INTEL_DIR := $(CURDIR)/build/intel-opencl
INTEL_OPENCL ?= intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.*

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export SKBUILD_BUILD_DIR := $(BUILD)
# Lets ccache, where it is installed, serve a clone in one folder with what another one compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

SOURCES := pyproject.toml $(shell find CMakeLists.txt cmake csrc include uniops codegen chips -type f \
             \( -name '*.cpp' -o -name '*.cl' -o -name '*.c' -o -name '*.h' -o -name '*.txt' -o -name '*.cmake' -o -name '*.yaml' \
                -o -name '*.json' -o -name '*.map' -o -path 'codegen/*.py' \) -not -path '*/tests/*' 2>/dev/null)
CORE_TEST_SOURCES := $(shell find tests/core -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name CMakeLists.txt)
CHIP_TEST_SOURCES := $(shell find chips -path '*/tests/*' -name '*.c*')

.PHONY: help demo test test-long litmus oom-drill test-opencl test-opencl-intel test-programs build bench docs check-docs lint sanitize sdist clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make demo      ResNet-50 on the reference chip, checked against the CPU (builds what is missing)"
	@echo "make test      all tests (builds what is missing)"
	@echo "make litmus    1,000 runs of the litmus programs under delays, and every mutant of them (LITMUS_RUNS=1000)"
	@echo "make oom-drill fills a device, fails, frees and goes on, 1,000 times"
	@echo "make test-long what takes too long for each change: litmus, oom-drill, the operator database on two chips at once"
	@echo "make test-opencl        the OpenCL chip's tests in full, on the runtimes that are installed (PoCL)"
	@echo "make test-opencl-intel  the same on Intel's CPU runtime, which it installs into build/ (about 1 GB)"
	@echo "make build     only build and install into $(VENV)"
	@echo "make bench     the measurements behind the published figures"
	@echo "make docs      write the generated pages again; make check-docs tells whether they are stale"
	@echo "make lint      ruff, and the floors of the architecture"
	@echo "make sanitize  the core's tests under address, undefined-behaviour and thread sanitizers"
	@echo "make sdist     the source distribution, into dist/"
	@echo "make clean     remove build/; make distclean also removes $(VENV)"
	@echo "variables: PYTHON=$(PYTHON) VENV=$(VENV) BUILD=$(BUILD) JOBS=$(JOBS) TORCH=$(TORCH)"

# ---------------------------------------------------------------- environment

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is older than 3.10; make PYTHON=python3.12 chooses another"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	@index=; \
	if $(PY) -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then :; \
	elif $(PIP) install -q --dry-run --no-index --no-deps '$(TORCH)' >/dev/null 2>&1; then :; \
	elif $(PY) -c "import urllib.request as u; u.urlopen('$(TORCH_CPU_INDEX)/torch/', timeout=10)" 2>/dev/null; then \
	  index="--index-url $(TORCH_CPU_INDEX)"; fi; \
	echo "installing $(TORCH)"; $(PIP) install -q $$index '$(TORCH)'
	@touch $@

$(STAMPS)/tools: $(STAMPS)/torch
	$(PIP) install -q 'scikit-build-core>=0.10' 'cmake>=3.20' ninja 'pyyaml>=6' typing_extensions setuptools
	@touch $@

$(STAMPS)/examples: $(STAMPS)/tools
	$(PIP) install -q numpy 'transformers>=5'
	@touch $@

$(STAMPS)/test: $(STAMPS)/examples
	$(PIP) install -q 'pytest>=8' pytest-timeout pytest-xdist scipy expecttest scikit-learn import-linter ruff
	@touch $@

# ---------------------------------------------------------------- build

build: $(STAMPS)/build

$(STAMPS)/build: $(STAMPS)/tools $(SOURCES)
	@echo "building Torch-FL and its chips; the first time this takes minutes"
	$(PIP) install -q --no-build-isolation -e .
	@touch $@

build/core-tests/.built: $(STAMPS)/build $(CORE_TEST_SOURCES)
	cmake -S tests/core -B build/core-tests -G Ninja \
	  -DTORCH_FL_TEST_ADAPTER=$(CURDIR)/$(BUILD)/chips/ninguang/adapter/libfl_ninguang.so >/dev/null
	cmake --build build/core-tests -j $(JOBS)
	@touch $@

build/.chip-tests: $(STAMPS)/build $(CHIP_TEST_SOURCES)
	cmake --build $(BUILD) -j $(JOBS)
	@touch $@

test-programs: build/core-tests/.built build/.chip-tests

# ---------------------------------------------------------------- use

demo: export TORCH_FL_HOME := $(HOME_DIR)/demo
demo: $(STAMPS)/build $(STAMPS)/examples
	@rm -rf $(TORCH_FL_HOME) && mkdir -p $(TORCH_FL_HOME)
	flagos-torch-fl init-profile --device ninguang --output $(TORCH_FL_HOME)/chip_profile.json
	flagos-torch-fl register-device --profile $(TORCH_FL_HOME)/chip_profile.json
	flagos-torch-fl device-list
	$(PY) examples/run_resnet50.py --device ninguang --batch-size 4 --iterations 10 --no-cpu-fallback
	$(PY) examples/run_resnet50.py --device ninguang --batch-size 4 --train --iterations 20 --no-cpu-fallback

# C++ and C tests run inside pytest too (tests/native), so that one summary tells of everything.
# Several processes share the cores: threads that spin while they wait would make everything slow.
test: export OMP_WAIT_POLICY := passive
test: export OMP_NUM_THREADS := 1
test: export TORCH_FL_HOME := $(HOME_DIR)/test
test: export TORCH_FL_CACHE_DIR := $(CACHE_DIR)
test: export POCL_CACHE_DIR := $(CACHE_DIR)/pocl
test: $(STAMPS)/build $(STAMPS)/test test-programs
	@mkdir -p $(TORCH_FL_HOME)
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal -p no:cacheprovider $(PYTEST_ARGS)

# Programs that are right only if they wait, with queued work held up at random; then with each wait removed in turn.
LITMUS_RUNS ?= 1000
litmus: export TORCH_FL_HOME := $(HOME_DIR)/litmus
litmus: export TORCH_FL_CHIPS := ninguang
litmus: $(STAMPS)/build $(STAMPS)/test
	@mkdir -p $(TORCH_FL_HOME)
	$(PY) tests/litmus/run.py --runs $(LITMUS_RUNS)
	$(PY) tests/litmus/mutate.py

# Fill, fail, free, go on: a thousand times, with segments that grow and with fixed ones.
oom-drill: export TORCH_FL_HOME := $(HOME_DIR)
oom-drill: export TORCH_FL_CHIPS := ninguang
oom-drill: export NINGUANG_MEMORY_MB := 192
oom-drill: $(STAMPS)/build
	TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS=1 $(PY) tests/device/oom_drill.py
	TORCH_FL_ALLOC_EXPANDABLE_SEGMENTS=0 $(PY) tests/device/oom_drill.py

test-long: litmus oom-drill
	FL_LONG=1 OMP_NUM_THREADS=1 $(PY) -m pytest -q -p no:cacheprovider tests/ops/test_concurrent_chips.py

test-opencl test-opencl-intel: export OMP_WAIT_POLICY := passive
test-opencl test-opencl-intel: export FL_OPENCL_FULL := 1
test-opencl: $(STAMPS)/build $(STAMPS)/test
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal -p no:cacheprovider $(PYTEST_ARGS) chips/opencl/tests

# The wheel's own .icd files hold a path of its makers' machine; this one holds ours.
$(INTEL_DIR)/vendors/intel.icd:
	$(PYTHON) -m venv $(INTEL_DIR)
	$(INTEL_DIR)/bin/python -m pip install -q $(foreach package,$(INTEL_OPENCL),'$(package)')
	@mkdir -p $(INTEL_DIR)/vendors && echo $(INTEL_DIR)/lib/libintelocl.so >$@

test-opencl-intel: export OCL_ICD_VENDORS := $(INTEL_DIR)/vendors
test-opencl-intel: $(STAMPS)/build $(STAMPS)/test $(INTEL_DIR)/vendors/intel.icd
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal -p no:cacheprovider $(PYTEST_ARGS) chips/opencl/tests

bench: $(STAMPS)/build $(STAMPS)/examples
	$(PY) benchmarks/chip_lines.py
	$(PY) benchmarks/import_time.py
	$(PY) benchmarks/op_cost.py
	$(PY) benchmarks/streams.py
	$(PY) benchmarks/resnet50.py
	$(PY) benchmarks/opencl.py

docs: $(STAMPS)/build
	$(PY) -m codegen.gen_python
	$(PY) -m codegen.gen_docs --write
	$(PY) -m torch_fl._env --write
	$(PY) -m torch_fl.profile.schema --write

check-docs: $(STAMPS)/build
	$(PY) -m codegen.gen_python --check
	$(PY) -m codegen.gen_docs --check
	$(PY) -m torch_fl._env --check
	$(PY) -m torch_fl.profile.schema --check

lint: $(STAMPS)/test
	ruff check .
	lint-imports

sanitize: $(STAMPS)/tools
	sh tests/core/sanitize.sh

sdist: $(STAMPS)/tools
	@mkdir -p dist
	$(PY) -c "from scikit_build_core.build import build_sdist; print('dist/' + build_sdist('dist'))"

clean:
	rm -rf build dist $(STAMPS)/build

distclean: clean
	rm -rf $(VENV)
