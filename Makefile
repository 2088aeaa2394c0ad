# All commands that users type. `make help` lists them. All build results go to build/ and bin/.

SHELL := /bin/bash
Q := $(if $(V),,@) # V=1 shows the commands
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# A build remembers the variables that were given on its command line: `make run` after `make demo CUDA=0` must not
# compile everything again with CUDA. An empty value, or CUDA=auto, makes it forget a variable. Variables of the
# environment come before remembered ones. `make -n` changes nothing.
HOST_HOMES := MPI HDF5 YAML_CPP DNNL JPEG PNG UTF8PROC JSON CLI11
TEST_HOMES := GTEST
CUDA_HOMES := CUDA CUDNN CUDNN_FRONTEND NCCL
HOPPER_HOMES := CUTLASS
ifneq ($(filter-out help setup dist clean format,$(or $(MAKECMDGOALS),all)),)
  REMEMBERED := CXX OPTIMISE WARNINGS UNITY CUDA CUDA_ARCHITECTURES $(addsuffix _HOME,$(HOST_HOMES) $(TEST_HOMES) $(CUDA_HOMES) $(HOPPER_HOMES))
  -include build/chosen.mk
  $(foreach v,$(REMEMBERED),$(if $(filter command,$(origin $(v))),$(eval CHOSEN_$(v) := $(filter-out auto,$($(v))))))
  TAKEN := $(strip $(foreach v,$(REMEMBERED),$(if $(CHOSEN_$(v)),$(if $(filter undefined default,$(origin $(v))),$(v)))))
  $(foreach v,$(TAKEN),$(eval $(v) := $(CHOSEN_$(v))))
  ifneq ($(and $(TAKEN),$(filter 0,$(MAKELEVEL)$(MAKE_RESTARTS))),)
    $(info as in the last build: $(foreach v,$(TAKEN),$(v)=$($(v)))   ($(firstword $(TAKEN))= takes that back))
  endif
  CHOSEN := $(foreach v,$(REMEMBERED),$(if $(CHOSEN_$(v)),$$(eval CHOSEN_$(v) := $(CHOSEN_$(v)))))
  ONLY_SHOWS := $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
  ifneq ($(or $(COUNTING),$(ONLY_SHOWS),$(strip $(CHOSEN))),$(or $(COUNTING),$(ONLY_SHOWS),$(strip $(file < build/chosen.mk))))
    $(shell mkdir -p build)$(file > build/chosen.mk,$(CHOSEN))
  endif
endif

ifeq ($(origin CXX),default)
  CXX := g++
endif
OPTIMISE ?= -O3 -g1 -ffp-contract=fast -fno-math-errno -fno-trapping-math
# The last two flags are for GCC 12, which reports overlaps and overruns inside std::string and std::vector that do not
# exist (its bugs 105651 and 107852).
WARNINGS ?= -Wall -Wextra -Wshadow -Wconversion -Werror $(if $(findstring clang,$(CXX)),,-Wno-restrict -Wno-stringop-overread)
FLAGS := -std=c++20 $(OPTIMISE) -fopenmp $(WARNINGS)
CUDA ?= auto
export NAMES COLUMN # for `make demo`
export PICTURES PICTURES_COUNT STUDIES RANKS DIGITS # for `make study`
export CXX CUDA CUDA_ARCHITECTURES MPI_HOME CUDA_HOME CUDNN_HOME CUDNN_FRONTEND_HOME NCCL_HOME CUTLASS_HOME HDF5_HOME DNNL_HOME YAML_CPP_HOME JPEG_HOME PNG_HOME UTF8PROC_HOME JSON_HOME CLI11_HOME GTEST_HOME

# Finds the Python with the modules that plots, reports and tests use. Only a distribution's own python3 sees its packages.
MODULES = matplotlib $(if $(filter-out demo,$(MAKECMDGOALS)),h5py scipy yaml $(if $(filter-out study,$(MAKECMDGOALS)),pytest))
find_python = for python in python3 /usr/bin/python3; do \
  $$python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, "$(MODULES)".split())))' \
  2> /dev/null && echo $$python && exit; done; echo python3
PYTHON ?= $(shell $(find_python))

# "[12/214]" shows how far a build is. A dry run counts the targets before the first line is shown.
to_do = $(shell $(MAKE) --dry-run --no-print-directory COUNTING=yes $(MAKEOVERRIDES) $(MAKECMDGOALS) 2> /dev/null | grep -c 'echo "\[')
STEP = $(if $(COUNTING),[],$(if $(TO_DO),,$(eval TO_DO := $(to_do)))$(eval DONE += x)[$(words $(DONE))/$(TO_DO)])

# ---- Files to build ----------------------------------------------------------------------------------------------

sources = $(sort $(shell find -H $(1) -name '*.cpp' 2> /dev/null))
# Most of the time of a small file goes into its headers. Therefore up to UNITY files of a folder are compiled together,
# as build/unity/FOLDER-N.cpp. UNITY=0 compiles each file alone, so that a change of one file is built faster.
UNITY ?= 20
single_objects = $(patsubst %.cpp,build/obj/%.o,$(patsubst src/%,%,$(patsubst build/%,%,$(1))))
together = $(filter-out $(ALONE),$(1))
objects = $(call single_objects,$(if $(filter 0,$(UNITY)),$(together),$(shell .ci/units.sh $(UNITY) $(together))) $(filter $(ALONE),$(1)))

KERNELS := src/backend/cpu/kernels.cpp $(wildcard src/backend/cpu/*_kernels.cpp) # one object per instruction set
# These sources include CUDA's headers. They are bin/libringtrain-cuda.so, which the program opens when it needs a GPU.
CUDA_PATTERNS := $(addprefix src/,backend/cuda/device/runtime/% backend/cuda/device/planner% backend/cuda/dnn/plans% cluster/nccl_library%)
# Of these folders, bin/ringtrain-data needs these files only.
SHARED_SOURCES := src/config/batch_course.cpp src/cluster/launcher.cpp
# These files have flags of their own, are compiled again for each commit, or belong to several programs.
ALONE := $(CUDA_PATTERNS) $(SHARED_SOURCES) src/backend/cuda/device/libraries.cpp src/base/version.cpp src/run/library_versions.cpp src/main.cpp data_prep/main.cpp \
  tests/emulation/% tests/fuzz/% tests/bench/% tests/unit/image_reference.cpp tests/unit/cuda_kernels_% tests/unit/cuda_occupancy_test.cpp
CONVERTER_SOURCES := $(filter-out data_prep/main.cpp,$(call sources,data_prep))
EMULATION_SOURCES := $(wildcard tests/emulation/*.cpp) # own kernels and a device on the CPU; no CUDA needed
KERNEL_TESTS := $(filter-out %_launch_test.cpp,$(wildcard tests/unit/cuda_kernels_*_test.cpp)) # they run on GPUs, too
FUZZ_TARGETS := tests/fuzz/target.cpp tests/fuzz/repair.cpp tests/fuzz/damaged_hdf5.cpp $(wildcard tests/fuzz/targets/*.cpp) # driver.cpp needs libFuzzer
BENCHES := $(patsubst tests/bench/%.cpp,build/bench/%,$(wildcard tests/bench/*.cpp))
TESTS := $(if $(wildcard tests/unit/*.cpp),build/tests/unit_tests) $(if $(wildcard tests/mpi/*.cpp),build/tests/mpi_tests) \
  $(if $(wildcard tests/gpu/*.cpp),build/tests/gpu_tests)

# For these goals this make searches for no libraries. Some of them, such as `demo`, first install what is missing, and
# then start another make, which searches for the libraries and builds.
SIMPLE_GOALS := help setup demo study study-record test test-rest test-all test-slurm faults inputs fuzz sanitize simulate gpu-kit dist clean format
BUILDING := $(filter-out $(SIMPLE_GOALS),$(or $(MAKECMDGOALS),all))
homes = $(foreach v,$(1),$(v)=$($(v)_HOME))
# Writes a file again if its text has changed. What depends on it is then built again. make 4.3 sometimes reads a file with
# its last newline, so blanks at the ends do not count.
write_if_changed = $(if $(COUNTING)$(call same,$(strip $(file < $(1))),$(strip $(2))),,$(shell mkdir -p $(dir $(1)))$(file > $(1),$(2)))
same = $(and $(findstring |$(1)|,|$(2)|),$(findstring |$(2)|,|$(1)|))
ifneq ($(BUILDING),)
  $(call write_if_changed,build/inputs,$(CXX) | $(FLAGS) | $(call homes,$(HOST_HOMES)))
  include build/config.mk
endif
# The programs alone need no CUDA. Everything else looks for it.
ifneq ($(filter-out programs run bin/ringtrain bin/ringtrain-data build/config.mk,$(BUILDING)),)
  $(call write_if_changed,build/cuda-inputs,$(CXX) | CUDA=$(or $(CUDA),auto) $(CUDA_ARCHITECTURES) $(call homes,$(CUDA_HOMES)))
  include build/cuda.mk
endif
ifneq ($(filter hopper hopper-check bundle bin/libringtrain-hopper.so,$(BUILDING)),)
  $(call write_if_changed,build/hopper-inputs,$(call homes,$(HOPPER_HOMES)))
  include build/hopper.mk
endif

# Only tests need GoogleTest. `make demo` does not install it, and `make test` does.
ifneq ($(filter tests test-% lint check-headers bundle $(TESTS) build/obj/tests/% build/obj/unity/tests_%,$(BUILDING)),)
  $(call write_if_changed,build/gtest-inputs,$(CXX) | $(call homes,$(TEST_HOMES)))
  include build/gtest.mk
endif

build/config.mk: build/inputs .ci/configure.sh .ci/probes.sh
	@.ci/configure.sh $@.tmp && mv $@.tmp $@
build/cuda.mk: build/cuda-inputs .ci/configure_cuda.sh .ci/probes.sh .ci/cudnn_frontend.sh
	@.ci/configure_cuda.sh $@.tmp && mv $@.tmp $@
# Objects for another GoogleTest go, because make sees no difference between them.
build/gtest.mk: build/gtest-inputs .ci/configure_gtest.sh .ci/probes.sh
	@.ci/configure_gtest.sh $@.tmp && mv $@.tmp $@ && rm -rf build/obj/tests build/obj/unity/tests_* build/alone/tests
build/hopper.mk: build/hopper-inputs build/cuda.mk .ci/configure_hopper.sh .ci/probes.sh .ci/cutlass.sh
	@NVCC="$$(sed -n 's/^NVCC := //p' build/cuda.mk)" .ci/configure_hopper.sh $@.tmp && mv $@.tmp $@

CUDA_SOURCES := $(filter $(CUDA_PATTERNS),$(call sources,src))
CUDA_OBJECTS := $(call single_objects,$(CUDA_SOURCES)) $(foreach type,fp32 bf16 fp16,build/obj/backend/cuda/kernels/table/$(type).cu.o)
LIBRARY_SOURCES := $(filter-out src/main.cpp $(KERNELS) $(CUDA_PATTERNS),$(call sources,src))
DATA_SOURCES := $(filter src/base/% src/cli/% src/data/% $(SHARED_SOURCES),$(LIBRARY_SOURCES))

INCLUDES = -Isrc -I. -Ibuild/generated $(MPI_CFLAGS) $(HDF5_CFLAGS) $(YAML_CFLAGS) $(DNNL_CFLAGS) $(JPEG_CFLAGS) $(PNG_CFLAGS) $(ZLIB_CFLAGS) $(UTF8PROC_CFLAGS) $(JSON_CFLAGS) $(CLI11_CFLAGS)
# Code that computes no tensors is compiled with -Og, which takes less time, and tests with -O0, but for those with long loops.
# The host's part of the GPU backend only queues commands.
COLD := $(foreach f,commands study run checkpoint bench config cli,src/$(f)/% build/unity/src_$(f)-%) \
  src/main.cpp src/backend/cuda/% build/unity/src_backend_cuda% data_prep/% build/unity/data_prep% tests/fuzz/% $(filter tests/unit/%,$(ALONE))
build/obj/tests/% build/obj/unity/tests_% build/alone/tests/%: INCLUDES += $(GTEST_CFLAGS)
UNOPTIMISED := $(foreach f,unit mpi gpu,tests/$(f)/% build/unity/tests_$(f)-%)
# Errors name their place as src/FILE in both ways of building. GCC takes a unit for the only file that uses a type, and
# warns of types in anonymous namespaces. Tests have local names that other tests have in their namespaces.
UNIT_FLAGS = -fmacro-prefix-map=./= $(if $(findstring clang,$(CXX)),,-Wno-subobject-linkage) $(if $(filter build/unity/tests%,$<),-Wno-shadow)
COMPILE = $(CXX) $(FLAGS) $(if $(filter $(COLD),$<),-Og)$(if $(filter $(UNOPTIMISED),$(filter-out $(ALONE),$<)),-O0) $(if $(filter build/unity/%,$<),$(UNIT_FLAGS)) $(ISA_FLAGS) $(INCLUDES) -MMD -MP
LINK = $(CXX) $(FLAGS) -o $@ $(filter %.o,$^)
# bin/libringtrain-cuda.so calls functions of the program that opens it. So the program has all of the library's, and
# exports them.
LINK_FOR_CUDA = $(LINK) $(filter-out build/libringtrain.a,$(filter %.a,$^)) -rdynamic -Wl,--whole-archive build/libringtrain.a -Wl,--no-whole-archive
DATA_LIBRARIES = $(HDF5_LIBS) $(JPEG_LIBS) $(PNG_LIBS) $(ZLIB_LIBS) $(UTF8PROC_LIBS) $(MPI_LIBS) -lpthread
LIBRARIES = $(DNNL_LIBS) $(YAML_LIBS) $(DATA_LIBRARIES) -ldl -lrt

.PHONY: programs cuda
programs: bin/ringtrain bin/ringtrain-data
# The second library replaces NVIDIA's driver when plans are made for a GPU that is absent
# (src/backend/cuda/device/plan_process.h).
CUDA_LIBRARIES := $(if $(filter on,$(CUDA_STATE)),bin/libringtrain-cuda.so bin/libcuda-stand-in.so)
cuda: $(CUDA_LIBRARIES)
	@$(if $(CUDA_LIBRARIES),:,echo "no library for GPUs: make CUDA=1 names what is missing" >&2; exit 1)
all: programs $(CUDA_LIBRARIES)

bin/ringtrain: build/obj/main.o build/libringtrain.a
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK_FOR_CUDA) $(LIBRARIES)

# Only these sources see CUDA's headers. The rest of the program stays free of them.
$(CUDA_OBJECTS): build/cuda.mk
$(CUDA_OBJECTS): INCLUDES += $(CUDA_CFLAGS)
$(CUDA_OBJECTS): FLAGS += -fPIC
bin/libringtrain-cuda.so: $(CUDA_OBJECTS)
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK) -shared -Wl,--exclude-libs,ALL $(CUDA_LIBS)

bin/libcuda-stand-in.so: src/backend/cuda/device/stand_in_driver.c build/cuda.mk
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(CXX) -x c -O1 -fPIC -Wall -Wextra -Werror -shared -Wl,-soname,libcuda.so.1 $< -o $@

# cuDNN's front end has a quarter of a million lines after the preprocessor. Debug information of them would be large.
build/obj/backend/cuda/dnn/plans.o: FLAGS += -g0

# The resources that each kernel needs on a GPU, as lines of kernel, type, compute capability, registers, shared bytes.
build/generated/kernel_resources.inc: src/backend/cuda/device/recorded/kernel_resources.csv
	@mkdir -p $(@D)
	@awk -F, '!/^#/ && $$1 != "kernel" {printf "{\"%s\", \"%s\", %s, %s, %s},\n", $$1, $$2, $$3, $$4, $$8}' $< > $@
# A test compares the rules of occupancy with those of CUDA's own header.
build/obj/tests/unit/cuda_occupancy_test.o: INCLUDES += $(CUDA_CFLAGS)

# The descriptions of GPUs are compiled into the executable.
build/generated/devices.inc: $(wildcard src/backend/cuda/device/descriptions/*.json)
	@mkdir -p $(@D)
	@for file in $(sort $^); do printf '{"%s", R"json(%s)json"},\n' "$$(basename $$file .json)" "$$(cat $$file)"; done > $@

# The converters also run on login nodes and laptops. They need no oneDNN, and MPI only under mpirun or srun.
bin/ringtrain-data: build/obj/data_prep/main.o build/libconverters.a build/libdata.a
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK) $(filter %.a,$^) $(DATA_LIBRARIES)

build/tests/unit_tests: $(call objects,$(wildcard tests/unit/*.cpp) $(FUZZ_TARGETS) $(EMULATION_SOURCES)) build/libconverters.a build/libringtrain.a
build/tests/mpi_tests: $(call objects,$(wildcard tests/mpi/*.cpp) tests/unit/image_reference.cpp $(EMULATION_SOURCES)) build/libconverters.a build/libringtrain.a
# The tests of the program's own kernels run on the GPU here, and in the emulation elsewhere.
build/tests/gpu_tests: $(call objects,$(wildcard tests/gpu/*.cpp) tests/unit/image_reference.cpp $(KERNEL_TESTS) $(EMULATION_SOURCES)) build/libringtrain.a
build/tests/unit_tests build/tests/mpi_tests build/tests/gpu_tests:
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK_FOR_CUDA) $(GTEST_LIBS) $(LIBRARIES)

# This target is for Clang with libFuzzer. tests/fuzz/run.sh builds it.
build/tests/fuzz: $(call objects,tests/fuzz/driver.cpp $(FUZZ_TARGETS)) build/libconverters.a build/libringtrain.a
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK) $(filter %.a,$^) -fsanitize=fuzzer $(LIBRARIES)

$(BENCHES): build/bench/%: build/obj/tests/bench/%.o build/libringtrain.a
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(LINK_FOR_CUDA) $(LIBRARIES)
build/bench/cuda_commands: $(call objects,$(EMULATION_SOURCES)) # to test it without a GPU

KERNEL_OBJECTS = $(foreach isa,$(ISAS),$(KERNELS:src/%.cpp=build/obj/%.$(isa).o))
LIBRARY_OBJECTS := $(call objects,$(LIBRARY_SOURCES))
# Compilers write which objects include these files, but not before the first build.
$(LIBRARY_OBJECTS): | build/generated/kernel_resources.inc build/generated/devices.inc
build/libringtrain.a: $(LIBRARY_OBJECTS) $(KERNEL_OBJECTS)
build/libdata.a: $(call objects,$(DATA_SOURCES))
build/libconverters.a: $(call objects,$(CONVERTER_SOURCES))
build/lib%.a:
	@rm -f $@
	@$(AR) rcs $@ $(filter %.o,$^)

build/obj/%.o: src/%.cpp build/config.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(COMPILE) -c $< -o $@

build/obj/data_prep/%.o: data_prep/%.cpp build/config.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(COMPILE) -c $< -o $@

build/obj/tests/%.o: tests/%.cpp build/config.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(COMPILE) -c $< -o $@

build/obj/unity/%.o: build/unity/%.cpp build/config.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(COMPILE) -c $< -o $@

# -O3 takes twice the time to compile these kernels, and they run no faster.
build/obj/tests/emulation/emulated_kernels.o: FLAGS += -O2

# ThreadSanitizer makes these plain loops a hundred times slower. They start no threads but OpenMP's.
$(addprefix build/obj/tests/,unit/image_reference.o emulation/reference_dnn.o emulation/reference_rnn.o): \
  FLAGS += $(if $(findstring -fsanitize=thread,$(OPTIMISE)),-fno-sanitize=thread)

march_baseline :=
march_avx2 := -mavx2 -mfma -mf16c
march_avx512 := $(march_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mprefer-vector-width=512
march_avx512_bf16 := $(march_avx512) -mavx512bf16
define kernel_rule
build/obj/backend/cpu/%.$(1).o: src/backend/cpu/%.cpp build/config.mk
	@mkdir -p $$(@D) && echo "$$(STEP) compile $$@"
	$$(Q)$$(COMPILE) $$(march_$(1)) -Wno-psabi -DRINGTRAIN_ISA=$(1) -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call kernel_rule,$(isa))))

# `-Xptxas -v` reports the resources that each kernel needs. tests/gpu/resources.py makes a table of them. CUDA 13's
# drivers unpack kernels that were compressed, so every program needs only a seventh of the bytes for them.
CUDA_PACKED := $(if $(filter-out 11 12,$(firstword $(subst ., ,$(word 2,$(CUDA_VERSIONS))))),--compress-mode=size)
NVCC_FLAGS = -std=c++20 -ccbin $(CXX) -O3 -lineinfo $(CUDA_GENCODE) $(CUDA_PACKED) -Werror all-warnings -Xptxas -v \
  -Xcompiler -fPIC,-Wall,-Wextra,-Wshadow,-Werror -Isrc
COMPILE_CUDA = $(NVCC) $(1) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ 2> $(@:.o=.ptxas) || { cat $(@:.o=.ptxas) >&2; exit 1; }
build/obj/backend/cuda/kernels/table/%.cu.o: src/backend/cuda/kernels/table.cu build/cuda.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(call COMPILE_CUDA,$(NVCC_FLAGS) -DRINGTRAIN_TABLE_TYPE=$*)

# The convolutions from CUTLASS for Hopper are a library of their own (make hopper) with 12 kernels, half a minute each.
HOPPER_LIBRARY := $(if $(CUTLASS_INCLUDE),bin/libringtrain-hopper.so)
HOPPER_INSTANCES := ${shell sed -n 's/^  X(\([a-z0-9_]*\),.*/\1/p' src/backend/cuda/hopper/instance.h 2> /dev/null}
HOPPER_OBJECTS := $(addprefix build/obj/backend/cuda/hopper/,$(HOPPER_INSTANCES:%=instance/%.cu.o) library.cu.o interface.pic.o)
HOPPER_NVCC_FLAGS = -std=c++20 -ccbin $(CXX) -O3 -DNDEBUG -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -diag-suppress 550 \
  -Xptxas -v -Xcompiler -fPIC,-fvisibility=hidden -Isrc -isystem $(CUTLASS_INCLUDE)
build/obj/backend/cuda/hopper/instance/%.cu.o: src/backend/cuda/hopper/instance.cu build/hopper.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(call COMPILE_CUDA,$(HOPPER_NVCC_FLAGS) -DRINGTRAIN_HOPPER_INSTANCE=$*)
build/obj/backend/cuda/hopper/library.cu.o: src/backend/cuda/hopper/library.cu build/hopper.mk
	@mkdir -p $(@D) && echo "$(STEP) compile $@"
	$(Q)$(call COMPILE_CUDA,$(HOPPER_NVCC_FLAGS))
build/obj/backend/cuda/hopper/interface.pic.o: src/backend/cuda/hopper/interface.cpp build/hopper.mk
	@mkdir -p $(@D)
	$(Q)$(COMPILE) -fPIC -fvisibility=hidden -c $< -o $@

bin/libringtrain-hopper.so: $(HOPPER_OBJECTS)
	@mkdir -p $(@D)
	@echo "$(STEP) link    $@"
	$(Q)$(CXX) -shared -o $@ $^ -Wl,--exclude-libs,ALL -Wl,-z,defs $(CUDA_LIBS) -lpthread

# Headers whose text comes from the build. A file is written again only if its text has changed. build_info.h is the text
# of `--version`. interface.h names the headers of the build, so that no program opens the library for GPUs of another.
generated_header = mkdir -p $(@D); printf '\#define %s "%s"\n' $(1) > $@.tmp; if cmp -s $@.tmp $@; then rm $@.tmp; else mv $@.tmp $@; fi
build/generated/build_info.h: always
	@$(call generated_header,RINGTRAIN_COMMIT "$$(cat COMMIT 2> /dev/null || git describe --always --dirty 2> /dev/null || echo unknown)" \
	  RINGTRAIN_FLAGS "$(CXX) $(FLAGS)" RINGTRAIN_INSTRUCTION_SETS "$(ISAS)" RINGTRAIN_YAML_CPP_VERSION "$(YAML_VERSION)")
build/generated/interface.h: always
	@$(call generated_header,RINGTRAIN_INTERFACE "$$(find src -name '*.h' | LC_ALL=C sort | xargs cat | sha1sum | cut -c1-16)")
build/generated/cuda_build_info.h: build/cuda.mk
	@$(call generated_header,RINGTRAIN_CUDA "$(CUDA_VERSIONS)" RINGTRAIN_CUDA_HOME "$(CUDA_FOLDER)")
build/obj/base/version.o build/obj/run/library_versions.o: build/generated/build_info.h
build/obj/backend/cuda/device/libraries.o: | build/generated/interface.h
$(CUDA_OBJECTS): | build/generated/interface.h build/generated/cuda_build_info.h

# Groups of files hide that a file lacks an #include. `make check-headers` therefore compiles each header alone, and `make
# check-sources` each source of a group. Only nvcc with CUTLASS can compile the headers with kernels for Hopper, and only
# SimGrid's compiler those of the simulation.
NOT_ALONE := src/backend/cuda/hopper/cutlass_headers.h src/backend/cuda/hopper/instance.h tests/simulate/%
HEADERS := $(filter-out $(NOT_ALONE) $(if $(filter on,$(CUDA_STATE)),,$(CUDA_PATTERNS)),$(shell find -H src data_prep tests -name '*.h'))
HEADER_CHECKS := $(HEADERS:%=build/alone/%.ok)
SOURCE_CHECKS := $(patsubst %,build/alone/%.ok,$(call together,$(LIBRARY_SOURCES) $(CONVERTER_SOURCES)))
$(patsubst %,build/alone/%.ok,$(filter $(CUDA_PATTERNS),$(HEADERS))): INCLUDES += $(CUDA_CFLAGS)
$(HEADER_CHECKS) $(SOURCE_CHECKS): | build/generated/kernel_resources.inc build/generated/devices.inc build/generated/build_info.h
$(HEADER_CHECKS) $(SOURCE_CHECKS): build/alone/%.ok: % build/config.mk
	@mkdir -p $(@D) && echo "$(STEP) check   $<"
	$(Q)$(CXX) $(FLAGS) -O0 -Wno-psabi $(UNIT_FLAGS) $(INCLUDES) -MMD -MP -MF $(@:.ok=.d) -MT $@ -fsyntax-only -include $< -x c++ - < /dev/null
	@touch $@

-include $(shell find build/obj build/alone -name '*.d' 2> /dev/null)

# ---- Commands ----------------------------------------------------------------------------------------------------

.PHONY: all help setup demo hopper hopper-check study study-record test test-rest test-all test-unit test-mpi test-e2e test-gpu test-slurm lint check-headers check-sources faults inputs fuzz sanitize simulate bench bundle gpu-plans gpu-kit install dist run clean format always

help:
	@echo "make demo [NAMES=names.csv [COLUMN=header]]"
	@echo "                              install, build, train on names, invent new ones, draw the loss"
	@echo "make study [PICTURES=folder]  install, build, run the scaled-down studies of configs/studies/ (about 70 minutes), report;"
	@echo "                              again after Ctrl-C: goes on. PICTURES: class folders in place of handwritten digits"
	@echo "make study-record REPORT=results/twins NAME=digits   keep that report in results/studies/NAME"
	@echo "make test                     install, build, the tests that find every planted fault (test-unit, test-mpi, test-e2e, test-gpu: all of one kind)"
	@echo "make test-rest                install, build, the tests that make test leaves out"
	@echo "make test-all                 install, build, all tests, and each header alone"
	@echo "make test-slurm               install, build, batch jobs on a small Slurm of this machine (needs root, or Slurm's packages)"
	@echo "make lint                     check the sources and pages themselves: each header alone, links, paths, style (tests/lint)"
	@echo "make faults [SEED=1] [COUNT=1000]  cause faults 1 to COUNT of a seed in small jobs, and record the outcomes (tests/faults)"
	@echo "make inputs [SEED=1] [COUNT=1000]  give the programs inputs 1 to COUNT of a seed, each wrong or odd in one way (tests/inputs)"
	@echo "make fuzz [TARGET=jpeg] [SECONDS=600] [SEEDS=0]   fuzz each reader of files, or one (tests/fuzz/README.md)"
	@echo "make simulate [RANKS=64] [WHAT=job|step|collectives|broadcast] [PLATFORM=fat_tree|dragonfly] [RANKS_PER_NODE=16] [ALGORITHM=auto]"
	@echo "                              the program on simulated ranks of a cluster (tests/simulate/README.md)"
	@echo "make sanitize KIND=address|undefined|thread   build with a sanitizer, run commands, unit and MPI tests (tests/sanitize/README.md)"
	@echo "make run N=4 EXPERIMENT=configs/names.yaml [ARGS='stop.steps=20 ...']"
	@echo "                              train on N ranks of this machine"
	@echo "make [all]                    build bin/ringtrain, bin/ringtrain-data and, where CUDA is, what make cuda builds"
	@echo "make cuda                     the part for GPUs, which the programs open: bin/libringtrain-cuda.so"
	@echo "make setup                    install the packages that the build needs (root, sudo; else it says which)"
	@echo "make bench                    compare with PyTorch (tests/bench/README.md)"
	@echo "make hopper                   convolutions from CUTLASS for H100 and H200: bin/libringtrain-hopper.so (about 5 minutes)"
	@echo "make hopper-check             the same, and a check of the compiled code of its kernels"
	@echo "make bundle                   a folder that runs on any Linux: build/ringtrain-bundle-*.tar.gz"
	@echo "make gpu-kit                  programs, plans and checks for an H100 or H200 without a build: build/ringtrain-gpu-kit.tar.xz"
	@echo "make install [PREFIX=/usr/local] [DESTDIR=]   programs, man pages, completion, configs, Slurm scripts, plots, pages, a module file"
	@echo "make dist                     the files of the last commit: build/ringtrain-*.tar.gz"
	@echo "make format                   clang-format over all C++ files"
	@echo "make clean                    remove build/ and bin/"
	@echo "Variables: MPI_HOME HDF5_HOME YAML_CPP_HOME DNNL_HOME JPEG_HOME PNG_HOME UTF8PROC_HOME JSON_HOME CLI11_HOME GTEST_HOME CUDA_HOME"
	@echo "           CUDNN_HOME CUDNN_FRONTEND_HOME NCCL_HOME CUTLASS_HOME, CUDA=auto|0|1, CUDA_ARCHITECTURES=all|80 90 ..., UNITY=0, CXX, PYTHON. They are taken when set; otherwise PATH and pkg-config are asked."
	@echo "           Later builds keep those of the command line, but not PYTHON."

# Commands that build first do so on all cores, unless the user gives a number of jobs.
ALL_CORES = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

setup:
	@WITH_CUDA=$(if $(GPU_HERE),yes) .ci/setup.sh $(or $(filter demo study,$(MAKECMDGOALS)),all)

# Without an NVIDIA driver, the demo and the study leave out the library for GPUs, unless CUDA=1 asks for it.
GPU_HERE = $(or $(filter 1,$(CUDA)),$(shell { ldconfig -p; ls /usr/lib/wsl/lib; } 2> /dev/null | grep -om1 'libcuda\.so\.1'))
build_for_here = $(MAKE) --no-print-directory $(ALL_CORES) $(if $(GPU_HERE),all,programs)

demo: setup
	@$(build_for_here)
	@PYTHON="$(PYTHON)" data_prep/demo.sh

study: setup
	@$(build_for_here)
	@PYTHON="$(PYTHON)" results/study.sh

REPORT ?= results/twins
study-record:
	@PYTHON="$(PYTHON)" results/study_record.sh $(REPORT) $(or $(NAME),$(error make study-record needs NAME=..., what the kept report is called))

# `make test` runs the tests that find every planted fault, `make test-rest` all others, and `make test-all` both. Batch
# jobs on a local Slurm are none of the first.
TESTS_OF_test := unit mpi e2e gpu --tier fast
TESTS_OF_test-rest := unit mpi e2e gpu slurm --tier rest
TESTS_OF_test-all := unit mpi e2e gpu slurm --tier all
test test-rest test-all: setup
	@$(MAKE) --no-print-directory $(ALL_CORES) all tests $(if $(filter test-all,$@),lint)
	@PYTHON="$(PYTHON)" tests/run_tests $(TESTS_OF_$@)

test-slurm: setup
	@$(MAKE) --no-print-directory $(ALL_CORES) all
	@PYTHON="$(PYTHON)" tests/run_tests slurm

.PHONY: tests
tests: $(TESTS) build/bench/cuda_commands # `make test` dry-runs the checks of a GPU

test-unit test-mpi test-e2e test-gpu: test-%: all tests
	@PYTHON="$(PYTHON)" tests/run_tests $*

check-headers: $(HEADER_CHECKS)
check-sources: $(SOURCE_CHECKS)

lint: check-headers
	@$(PYTHON) tests/lint

SEED ?= 1
COUNT ?= 1000
faults: setup
	@$(MAKE) --no-print-directory $(ALL_CORES) all
	@$(PYTHON) tests/faults/campaign.py --seed $(SEED) --count $(COUNT) $(ARGS)

inputs: setup
	@$(MAKE) --no-print-directory $(ALL_CORES) all
	@$(PYTHON) tests/inputs/campaign.py --seed $(SEED) --count $(COUNT) $(ARGS)

SECONDS ?= 600
fuzz: setup
	@tests/fuzz/run.sh "$(TARGET)" $(SECONDS)

simulate: setup
	@.ci/simgrid.sh
	@$(MAKE) --no-print-directory $(ALL_CORES) all
	@$(PYTHON) tests/simulate/run.py $(or $(RANKS),64) $(if $(WHAT),--what $(WHAT)) $(if $(PLATFORM),--topology $(PLATFORM)) \
	  $(if $(RANKS_PER_NODE),--ranks-per-node $(RANKS_PER_NODE)) $(if $(ALGORITHM),--algorithm $(ALGORITHM)) $(ARGS)

KIND ?= address
sanitize: setup
	@tests/sanitize/run.sh $(KIND) $(ARGS)

N ?= 2
EXPERIMENT ?= configs/names.yaml
run: bin/ringtrain
	@tests/mpirun.sh $(N) bin/ringtrain train $(EXPERIMENT) $(ARGS)

bench: all $(BENCHES)
	@$(PYTHON) tests/bench/lstm_bench.py $(ARGS)

hopper: $(HOPPER_LIBRARY)
	@$(if $(HOPPER_LIBRARY),:,echo "no library for Hopper: $(CUTLASS_WHY)")

hopper-check: hopper
	@$(if $(HOPPER_LIBRARY),$(PYTHON) tests/gpu/hopper.py,:)

bundle: all tests hopper
	@.ci/bundle.sh bundle

# cuDNN's plans for the checks of a GPU, below build/gpu-plans. Plans that are there are kept.
gpu-plans: bin/ringtrain $(CUDA_LIBRARIES)
	@.ci/gpu_plans.sh

# The kit has kernels for the H100 and H200 alone. If the last build was for other GPUs, all files are compiled again.
gpu-kit: setup
	@$(MAKE) --no-print-directory $(ALL_CORES) CUDA_ARCHITECTURES=90 all build/tests/gpu_tests build/bench/cuda_commands hopper gpu-plans
	@.ci/bundle.sh gpu-kit

PREFIX ?= /usr/local
install: all
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" .ci/install.sh

# The archive has the files of the last commit, and COMMIT, which holds the commit's name where there is no git.
dist:
	@commit=$$(git describe --always) && mkdir -p build && git archive --format=tar --prefix=ringtrain-$$commit/ \
	  --add-virtual-file=ringtrain-$$commit/COMMIT:$$commit HEAD | gzip -9n > build/ringtrain-$$commit.tar.gz && \
	  echo "build/ringtrain-$$commit.tar.gz"

format:
	@find src data_prep tests -name '*.cpp' -o -name '*.h' -o -name '*.cuh' -o -name '*.cu' | xargs clang-format -i

clean:
	rm -rf build bin
