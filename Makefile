# tarn. Two commands do: `make run` builds and starts a server, `make test` builds and tests
# everything. `make help` lists the rest. Variables: SANITIZER=address|undefined|thread, CC=clang,
# ARCH=arm64, V=1, CFLAGS, LTO=no, WERROR=, PREFIX, DESTDIR.
#
# How it is put together: a room of the source tree (src/ROOM) is one static archive,
# build/KIND/libROOM.a. Binaries and tests link the archives of the rooms they may use, and no
# others, so that a room which does not compile stops only what needs it (`make -k`).
# tools/rooms.txt says which these are; `make lint` checks every include against it.
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
SHELL := /bin/bash
MAKEFLAGS += --no-builtin-rules

VERSION := 0.2.0
SOVERSION := 0
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share/tarn
DOCDIR ?= $(PREFIX)/share/doc/tarn
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d

# --- the compiler ---

# ARCH=arm64: another machine's binaries in build/arm64, by Debian's cross compiler.
ARCH ?=
TRIPLE_arm64 := aarch64-linux-gnu-
CROSS := $(TRIPLE_$(ARCH))
ifneq ($(ARCH),$(if $(CROSS),$(ARCH)))
$(error ARCH=$(ARCH): arm64, or nothing for the machine that builds)
endif
SANITIZER ?=
KIND := $(or $(ARCH)$(SANITIZER:%=$(if $(ARCH),-)%),release)
BUILD := build/$(KIND)
ifeq ($(origin CC),default)
CC := $(CROSS)gcc
endif
ifeq ($(origin AR),default)
AR := $(CROSS)ar
endif
OBJCOPY ?= $(CROSS)objcopy
# Its libraries; SYSROOT=/ where the system has them itself.
SYSROOT ?= $(if $(CROSS),build/sysroot-$(ARCH))
SYSROOT_FLAGS := $(if $(filter-out /,$(SYSROOT)),--sysroot=$(SYSROOT))
# Its programs are run by qemu-user, tests against the servers of build/release;
# QEMU_PAGESIZE=65536 gives them large pages. qemu 7.2 pays for every page that was ever reserved:
# hence the limit of addresses, of which the books take a share, and -R, with which it hands out
# again what was given back.
ifneq ($(CROSS),)
export TEST_UNDER ?= prlimit --as=8589934592 \
                     qemu-$(patsubst %-linux-gnu-,%,$(CROSS)) -R 7000M -L $(abspath $(SYSROOT))
endif
Q := $(if $(V),,@)
, := ,
say = $(if $(V),,@printf '  %-5s %s\n' $(1) '$(2)')

WERROR ?= -Werror
WARN := -Wall -Wextra $(WERROR) -Wno-unused-parameter -Wstrict-prototypes -Wmissing-prototypes \
        -Wpointer-arith -Wvla
ifeq ($(SANITIZER),)
CFLAGS ?= -O2 -g
HARDEN := -fstack-protector-strong
else
# Lines for reports, without variables: a fifth less time in the compiler.
CFLAGS ?= -O1 -g1
# gcc sees ghosts once the sanitizers have rewritten the code.
HARDEN := $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized)
endif
SAN_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SAN_undefined := -fsanitize=undefined -fno-sanitize-recover=undefined
# -Wno-tsan: fences order accesses to memory that another process writes; ThreadSanitizer does not
# see those.
SAN_thread := -fsanitize=thread $(if $(findstring clang,$(CC)),,-Wno-tsan)
SAN_fuzz := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
SAN_FLAGS := $(SAN_$(SANITIZER))
ifneq ($(SANITIZER),)
ifeq ($(SAN_FLAGS),)
$(error SANITIZER=$(SANITIZER): address, undefined or thread)
endif
SAN_FLAGS += -DTARN_SANITIZER=1
# Some 270 programs with the sanitizers' tables: gold takes two fifths of ld's time for each. It
# warns of what clang makes.
SAN_LDFLAGS := $(if $(findstring clang,$(CC)),,$(if $(shell command -v ld.gold),-fuse-ld=gold))
endif

# Structures are cleared and copied by a row of moves: x86's own word for it (rep stos) takes long
# to begin. One of them was 3.7 % of a leased get (perf).
MOVES := unrolled_loop:256:noalign,libcall:-1:noalign
MOVES_x86_64 := -mmemset-strategy=$(MOVES) -mmemcpy-strategy=$(MOVES)
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
MOVES_CFLAGS := $(if $(findstring clang,$(CC)),,$(MOVES_$(MACHINE)))

ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE -DTARN_VERSION='"$(VERSION)"' -Isrc $(CPPFLAGS) $(CFLAGS) \
             $(WARN) -fPIC -fvisibility=hidden -fno-strict-aliasing -fno-omit-frame-pointer \
             -pthread $(MOVES_CFLAGS) $(HARDEN) $(SAN_FLAGS) $(SYSROOT_FLAGS)
# What a request goes through is put into one piece when the server is linked, by gcc: a tenth fewer
# instructions for a key, and ten seconds more. LTO=no: not so. All else is linked as it was
# compiled.
LTO := $(if $(SANITIZER)$(ARCH)$(findstring clang,$(CC)),no,yes)
LTO_ROOMS := base resp net wire slots store front commands
LTO_CFLAGS := $(if $(filter yes,$(LTO)),-flto -ffat-lto-objects)
# A sanitizer's functions are in the program, not in the libraries.
NO_UNDEFINED := $(if $(SANITIZER),,-Wl$(,)-z$(,)defs)
LTO_LDFLAGS = $(if $(LTO_CFLAGS),-fno-lto)
ALL_LDFLAGS = -pthread $(LTO_LDFLAGS) -Wl,--as-needed -Wl,-z,relro,-z,now $(SAN_FLAGS) \
              $(SAN_LDFLAGS) $(SYSROOT_FLAGS) $(LDFLAGS)
LIBS := -levent_core -lssl -lcrypto -lsodium -lxxhash -llz4 -lpcre2-8 -lhiredis -luring -ldl -lm
# jemalloc replaces malloc in our own processes: not in the library that others load, and not under
# a sanitizer.
MALLOC_LIBS := $(if $(SANITIZER),,-Wl$(,)--no-as-needed -ljemalloc -Wl$(,)--as-needed)

# Everything is written beside its place and renamed: two makes in one tree do not read each other's
# halves. Objects are built anew when the compiler or its flags change.
FLAGS_FILE := $(BUILD)/flags
FLAGS_NOW := $(CC) $(ALL_CFLAGS) $(LTO_CFLAGS)
ifneq ($(filter-out clean help lint deb,$(or $(MAKECMDGOALS),all)),)
ifneq ($(FLAGS_NOW),$(file < $(FLAGS_FILE)))
$(shell mkdir -p $(BUILD))
$(file > $(FLAGS_FILE),$(FLAGS_NOW))
endif
endif
$(FLAGS_FILE): ;
ifneq ($(SYSROOT_FLAGS),)
$(SYSROOT):
	tools/sysroot.sh $(ARCH) $@
endif

$(BUILD)/%.o: %.c $(FLAGS_FILE) | $(SYSROOT)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@.$$$$ && mv -f $@.$$$$ $@

# --- rooms: which there are, and which each may call, is in tools/rooms.txt ---

# room:called:called... for each, the lowest first
GRAPH := $(shell sed -nE 's/^(\w+) [0-9]+:/\1/p' tools/rooms.txt | tr ' ' ':')
# ROOMS has users before the used, which is the order of linking; DEPS_room, in that order, what a
# room may call and what that may call.
define graph_row
ROOMS := $(1) $(ROOMS)
DEPS_$(1) := $(filter $(foreach r,$(2),$(r) $(DEPS_$(r))),$(ROOMS))
endef
row = $(eval $(call graph_row,$(firstword $(1)),$(wordlist 2,$(words $(1)),$(1))))
$(foreach g,$(GRAPH),$(call row,$(subst :, ,$(g))))
# Some rooms, with all that they need.
with_deps = $(filter $(1) $(foreach r,$(1),$(DEPS_$(r))),$(ROOMS))

# The source of a room, without the main of a binary.
sources = $(filter-out src/%/main.c,$(wildcard src/$(1)/*.c src/$(1)/*/*.c))
objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
archives = $(patsubst %,$(BUILD)/lib%.a,$(1))

# Libraries of one room: modules/conductor.so links them, neither the server nor libtarn does.
room_libs = $(if $(filter kvevents,$(1)),-lzmq -lmpack) $(if $(filter scrape,$(1)),-lcurl)

define room_rules
$$(BUILD)/lib$(1).a: $(call objects,$(call sources,$(1)))
	$$(call say,AR,$$@)
	@mkdir -p $$(@D)
	$$(Q)$$(AR) qcs $$@.$$$$$$$$ $$^ && mv -f $$@.$$$$$$$$ $$@
endef
$(foreach r,$(ROOMS),$(eval $(call room_rules,$(r))))

$(foreach r,$(LTO_ROOMS),$(BUILD)/src/$(r)/%.o): ALL_CFLAGS += $(LTO_CFLAGS)

# --- binaries ---

# A room with a main.c is one: src/node/main.c is tarn-node's.
MAINS := $(patsubst src/%/main.c,%,$(wildcard src/*/main.c))
BINARIES := $(MAINS:%=tarn-%)
LIBTARN := libtarn.so.$(SOVERSION)
LIBTARN_WHOLE := client hosting transfer
LIBTARN_ROOMS := $(call with_deps,$(LIBTARN_WHOLE))
LIBTARN_REST := $(filter-out $(LIBTARN_WHOLE),$(LIBTARN_ROOMS))

.PHONY: all binaries
all: binaries
binaries: $(patsubst %,$(BUILD)/%,$(BINARIES) $(LIBTARN) libtarn.so)

define link
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@.$$$$ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(1) && \
	    mv -f $@.$$$$ $@
endef

LINK_server := -rdynamic
$(BUILD)/tarn-server: LTO_LDFLAGS = $(if $(LTO_CFLAGS),-flto=auto $(CFLAGS) $(MOVES_CFLAGS))
define binary_rules
$(BUILD)/tarn-$(1): $(BUILD)/src/$(1)/main.o $(call archives,$(call with_deps,$(1)))
	$$(call link,$$(LINK_$(1)) $$(MALLOC_LIBS))
endef
$(foreach m,$(MAINS),$(eval $(call binary_rules,$(m))))

# All of client, hosting and transfer, and what they pull in from the rooms below. What is visible:
# src/libtarn.map.
WHOLE_CLIENT := -Wl,-u,tarn_status_text -Wl,--whole-archive $(call archives,$(LIBTARN_WHOLE)) \
                -Wl,--no-whole-archive $(call archives,$(LIBTARN_REST))
$(BUILD)/$(LIBTARN): $(call archives,$(LIBTARN_ROOMS)) src/libtarn.map
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(LIBTARN) $(NO_UNDEFINED) \
	    -Wl,--version-script=src/libtarn.map -o $@.$$$$ $(WHOLE_CLIENT) $(LIBS) && mv -f $@.$$$$ $@
$(BUILD)/libtarn.so: $(BUILD)/$(LIBTARN)
	$(Q)ln -sf $(LIBTARN) $@
# One object, in which only what is public has kept its name.
$(BUILD)/libtarn.a: $(call archives,$(LIBTARN_ROOMS))
	$(call say,AR,$@)
	$(Q)$(CC) -r -nostdlib -o $(BUILD)/tarn.o $(WHOLE_CLIENT)
	$(Q)$(OBJCOPY) --localize-hidden $(BUILD)/tarn.o
	$(Q)rm -f $@ && $(AR) qcs $@ $(BUILD)/tarn.o
# Where modules are looked for in the end; built anew when that changes.
LIBDIR_FILE := $(BUILD)/libdir
ifneq ($(filter-out clean help lint deb,$(or $(MAKECMDGOALS),all)),)
ifneq ($(LIBDIR),$(file < $(LIBDIR_FILE)))
$(file > $(LIBDIR_FILE),$(LIBDIR))
endif
endif
$(LIBDIR_FILE): ;
$(BUILD)/src/module/path.o: ALL_CFLAGS += -DTARN_LIBDIR='"$(LIBDIR)"'
$(BUILD)/src/module/path.o: $(LIBDIR_FILE)
# tarn_status.h is public, and the room that implements it does not know about libraries.
$(BUILD)/src/base/status.o: ALL_CFLAGS += -fvisibility=default

# --- modules: modules/NAME.so of modules/NAME/*.c ---
#
# Each has its own copy of base and shows one symbol (src/module.h). The core links none of their
# libraries.

MODULES := $(patsubst modules/%/,%,$(sort $(dir $(wildcard modules/*/*.c))))
LIBS_rdma := -lrdmacm -libverbs
LIBS_http := -lmicrohttpd
LIBS_conductor := -lsodium -lcrypto
# What a module may call beside base; it has its own copy of these, too.
module_rooms = $(call with_deps,$(shell sed -n 's|^modules/$(1): ||p' tools/rooms.txt) base)
$(BUILD)/modules/%.o: ALL_CFLAGS += -Imodules
$(BUILD)/tests/fake_verbs/%.o $(BUILD)/tests/unit/rdma/%.o: ALL_CFLAGS += -Imodules
$(BUILD)/tests/unit/http/%.o $(BUILD)/tests/unit/conductor/%.o: ALL_CFLAGS += -Imodules
$(BUILD)/tests/fuzz/rdma_%.o $(BUILD)/tests/fuzz/conductor_%.o: ALL_CFLAGS += -Imodules
MODULE_FILES := $(MODULES:%=$(BUILD)/modules/%.so)
# $(1) the libraries
define link_module
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,--version-script=modules/module.map $(NO_UNDEFINED) \
	    -o $@.$$$$ $(filter %.o,$^) $(filter %.a,$^) $(1) -lxxhash -lm && mv -f $@.$$$$ $@
endef
define module_rules
$(BUILD)/modules/$(1).so: $(call objects,$(wildcard modules/$(1)/*.c)) \
                          $(call archives,$(call module_rooms,$(1))) modules/module.map
	$$(call link_module,$(LIBS_$(1)) $(call room_libs,$(call module_rooms,$(1))))
endef
$(foreach m,$(MODULES),$(eval $(call module_rules,$(m))))
binaries: $(MODULE_FILES)

# The page of modules/http, in one piece.
PAGE_TEXT := $(BUILD)/modules/http/made/page_text.h
$(PAGE_TEXT): $(wildcard modules/http/page/*)
	@mkdir -p $(@D)
	$(Q)modules/http/page/join.sh modules/http/page > $@.$$$$ && mv -f $@.$$$$ $@
$(BUILD)/modules/http/page.o: ALL_CFLAGS += -DPAGE_TEXT='"$(abspath $(PAGE_TEXT))"'
$(BUILD)/modules/http/page.o: $(PAGE_TEXT)

# The rdma module over verbs that move bytes through sockets: what runs where there is no RDMA
# device, and shows what no device shows (tests/fake_verbs/README.md).
FAKE_VERBS_C := $(wildcard tests/fake_verbs/*.c)
FAKE_RDMA := $(if $(FAKE_VERBS_C),$(BUILD)/tests/fake_verbs/rdma.so)
$(BUILD)/tests/fake_verbs/rdma.so: $(call objects,$(wildcard modules/rdma/*.c) $(FAKE_VERBS_C)) \
                                   $(BUILD)/libbase.a modules/module.map
	$(call link_module,)

# The release binaries are also found in src/, modules in modules/. Replaced by renaming, so that a
# running one is left alone.
ifeq ($(KIND),release)
binaries: $(patsubst %,src/%,$(BINARIES) $(LIBTARN)) src/libtarn.so
$(patsubst %,src/%,$(BINARIES) $(LIBTARN)): src/%: $(BUILD)/%
	$(Q)cp -f $< $@.$$$$ && mv -f $@.$$$$ $@
src/libtarn.so: src/$(LIBTARN)
	$(Q)ln -sf $(LIBTARN) $@
binaries: $(MODULES:%=modules/%.so)
$(MODULES:%=modules/%.so): modules/%: $(BUILD)/modules/%
	$(Q)cp -f $< $@.$$$$ && mv -f $@.$$$$ $@
endif

# --- tests ---

# A test program is a file with a main or TEST_MAIN (tests/unit/test.h); the other files beside it
# are its helpers.
TEST_C := $(wildcard tests/unit/*.c tests/unit/*/*.c tests/transport/*.c tests/stress/*.c)
define IS_MAIN
'^(int )?main *\(|^TEST_MAIN'
endef
TEST_MAIN := $(if $(TEST_C),$(shell grep -lE $(IS_MAIN) $(TEST_C)))
TEST_HELP := $(filter-out $(TEST_MAIN),$(TEST_C))
helpers_of = $(foreach h,$(TEST_HELP),$(if $(filter $(dir $(1)),$(dir $(h))),$(h))) \
             $(UNIT_HELP_$(call room_of,$(1)))
program = $(patsubst %.c,$(BUILD)/%,$(1))

# $(1) source with main, $(2) rooms
define test_rules
$(call program,$(1)): $(call objects,$(1) $(call helpers_of,$(1))) $(call archives,$(2))
	$$(call link,$(call room_libs,$(2)))
endef
room_of = $(word 3,$(subst /, ,$(1)))
# What a room's tests are made of besides.
UNIT_DEPS_client := resp
UNIT_DEPS_hosting := resp
# A server in a thread.
UNIT_DEPS_inband := server
# Stand-in engines.
UNIT_HELP_conductor := tests/unit/kvevents/engine.c tests/unit/scrape/web.c
unit_rooms = $(call with_deps,$(1) $(UNIT_DEPS_$(1)) base)
# TEST_ROOMS="base pool": the unit tests of these only.
TEST_ROOMS ?= *
UNIT_MAIN := $(filter $(wildcard $(TEST_ROOMS:%=tests/unit/%/*.c)),$(TEST_MAIN))
TRANSPORT_MAIN := $(filter tests/transport/%,$(TEST_MAIN))
STRESS_MAIN := $(filter tests/stress/%,$(TEST_MAIN))
# tests/unit/rdma: the module's own objects over the fake verbs, without a file to load.
RDMA_UNIT_MAIN := $(filter tests/unit/rdma/%,$(UNIT_MAIN))
# tests/unit/http: those of the module's files that need no HTTP library.
HTTP_UNIT_MAIN := $(filter tests/unit/http/%,$(UNIT_MAIN))
# tests/unit/conductor: the whole module, and a server that is not there.
CONDUCTOR_UNIT_MAIN := $(filter tests/unit/conductor/%,$(UNIT_MAIN))
$(foreach t,$(filter-out $(RDMA_UNIT_MAIN) $(HTTP_UNIT_MAIN) $(CONDUCTOR_UNIT_MAIN),$(UNIT_MAIN)),\
    $(eval $(call test_rules,$(t),$(call unit_rooms,$(call room_of,$(t))))))
$(BUILD)/librdma.a: $(call objects,$(wildcard modules/rdma/*.c) $(FAKE_VERBS_C))
	$(call say,AR,$@)
	$(Q)$(AR) qcs $@.$$$$ $^ && mv -f $@.$$$$ $@
$(BUILD)/libhttp.a: $(call objects,$(wildcard modules/http/*.c))
	$(call say,AR,$@)
	$(Q)$(AR) qcs $@.$$$$ $^ && mv -f $@.$$$$ $@
$(BUILD)/libconductor.a: $(call objects,$(wildcard modules/conductor/*.c))
	$(call say,AR,$@)
	$(Q)$(AR) qcs $@.$$$$ $^ && mv -f $@.$$$$ $@
CONDUCTOR_ROOMS := conductor $(call module_rooms,conductor)
$(foreach t,$(CONDUCTOR_UNIT_MAIN),$(eval $(call test_rules,$(t),$(CONDUCTOR_ROOMS))))
$(foreach t,$(HTTP_UNIT_MAIN),$(eval $(call test_rules,$(t),http base)))
$(foreach t,$(RDMA_UNIT_MAIN),$(eval $(call test_rules,$(t),rdma $(call with_deps,module))))
$(foreach t,$(TRANSPORT_MAIN) $(STRESS_MAIN),$(eval $(call test_rules,$(t),$(LIBTARN_ROOMS))))

# A fuzz target is tests/fuzz/NAME_fuzz.c. It links the room that its name begins with (resp_fuzz,
# host_frame_fuzz), or all that a server has. `make test` runs it with standalone_main.c over its
# seeds and mutations of them; `make fuzz` with libFuzzer.
FUZZ_C := $(wildcard tests/fuzz/*_fuzz.c)
FUZZ_SECONDS ?= 60
fuzz_room = $(or $(filter $(ROOMS) rdma conductor,$(firstword $(subst _, ,$(notdir $(1))))),server)
FUZZ_DEPS_persist := cluster module
FUZZ_DEPS_client := hosting transfer
FUZZ_DEPS_rdma := module
FUZZ_DEPS_conductor := $(call module_rooms,conductor)
fuzz_rooms = $(filter rdma conductor,$(1)) $(call with_deps,$(1) $(FUZZ_DEPS_$(1)) base)
FUZZ_MAIN := $(if $(filter fuzz,$(SANITIZER)),,tests/fuzz/standalone_main.c)
define fuzz_rules
$(call program,$(1)): $(call objects,$(1) $(FUZZ_MAIN)) \
                      $(call archives,$(call fuzz_rooms,$(call fuzz_room,$(1))))
	$$(call link,$(if $(FUZZ_MAIN),,-fsanitize=fuzzer) \
	    $(call room_libs,$(call fuzz_rooms,$(call fuzz_room,$(1)))))
endef
$(foreach t,$(FUZZ_C),$(eval $(call fuzz_rules,$(t))))

FAULT_C := $(wildcard tests/fault/*.c)
FAULT_SO := $(patsubst %.c,$(BUILD)/%.so,$(FAULT_C))
$(FAULT_SO): $(BUILD)/%.so: $(BUILD)/%.o
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -pthread $(SYSROOT_FLAGS) -o $@ $< -ldl

# Small modules, good and bad, for the tests of the loader.
TEST_MODULES_C := $(wildcard tests/modules/*.c)
TEST_MODULES := $(patsubst %.c,$(BUILD)/%.so,$(TEST_MODULES_C))
$(TEST_MODULES): $(BUILD)/%.so: $(BUILD)/%.o
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -o $@.$$$$ $(filter %.o %.a,$^) && mv -f $@.$$$$ $@
$(BUILD)/tests/modules/pipe.so $(BUILD)/tests/modules/web.so: $(call archives,base)

# What integration tests call: libtarn for scripts.
BY_HAND_C := $(wildcard tests/tools/route_*.c tests/tools/kvevents_*.c tests/tools/scrape_*.c)
TOOLS := $(patsubst %.c,$(BUILD)/%,$(filter-out $(BY_HAND_C),$(wildcard tests/tools/*.c)))
$(TOOLS): $(BUILD)/%: $(BUILD)/%.o $(call archives,$(LIBTARN_ROOMS))
	$(call link,)

# By hand: docs/BENCHMARKS.md.
BY_HAND := $(patsubst %.c,$(BUILD)/%,$(BY_HAND_C))
$(BY_HAND): $(BUILD)/%: $(BUILD)/%.o $(call archives,scrape kvevents route base)
	$(call link,$(call room_libs,scrape kvevents))

# The examples of docs/LIBTARN.md see what a user sees: the public headers and the library.
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
HEADERS := tarn.h tarn_transfer.h tarn_status.h
PUBLIC_HEADERS := $(HEADERS:%=$(BUILD)/include/%)
$(PUBLIC_HEADERS): $(BUILD)/include/%: src/%
	@mkdir -p $(@D) && cp $< $@.$$$$ && mv -f $@.$$$$ $@
$(EXAMPLES): $(BUILD)/%: %.c $(BUILD)/libtarn.so $(PUBLIC_HEADERS)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -Wall -Wextra $(WERROR) $(CFLAGS) $(SAN_FLAGS) $(SYSROOT_FLAGS) \
	    -I$(BUILD)/include $< -o $@.$$$$ -L$(BUILD) -ltarn -Wl,-rpath,'$$ORIGIN/..' && mv -f $@.$$$$ $@
.PHONY: examples
examples: $(EXAMPLES)

UNIT := $(call program,$(UNIT_MAIN))
# What one thread owns has nothing for ThreadSanitizer to find.
ifeq ($(SANITIZER),thread)
UNIT := $(filter-out $(foreach r,acl cluster resp route simulate slots store trace wire, \
    $(BUILD)/tests/unit/$(r)/%),$(UNIT))
endif
TRANSPORT := $(call program,$(TRANSPORT_MAIN))
STRESS := $(call program,$(STRESS_MAIN))
MODEL_TESTS := $(foreach r,store cluster,$(BUILD)/tests/unit/$(r)/model_test)
FUZZ := $(call program,$(FUZZ_C))

.PHONY: deps tests test test-unit test-transport test-fuzz test-stress
.PHONY: test-robust test-chaos test-ha test-long test-integration test-python
.PHONY: test-gpu test-rdma test-redis test-packages
deps:
	@deps/install.sh --quiet build test
# Everything that tests run, built as far as it compiles: what is missing counts as a failed test.
tests: binaries $(FAKE_RDMA) $(TEST_MODULES) $(FAULT_SO) $(TOOLS) $(UNIT) $(TRANSPORT) $(STRESS)
ifneq ($(SANITIZER),thread) # which has no use for these, see TEST_GROUPS
tests: $(EXAMPLES) $(FUZZ)
endif

JOBS ?= $(shell nproc)
PARALLEL = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))
RUN_TESTS = tools/run-tests.py --build $(BUILD) --kind $(or $(SANITIZER),release)
# Builds what it can, and writes down what should be there: run-tests.py does not guess.
define build_tests
	+@$(MAKE) --no-print-directory $(if $(V)$(MAKE_TERMOUT),,-s) -k $(PARALLEL) $(1) || \
	    echo '*** not everything was built; what is missing counts as failed'
	@printf '%s\n' $(UNIT:%=unit:%) $(TRANSPORT:%=transport:%) $(FUZZ:%=fuzz:%) \
	    $(STRESS:%=stress:%) > $(BUILD)/tests.list
endef

# Documents are held against the programs once. ThreadSanitizer: the rooms with threads, and whole
# processes of which several threads take part.
TEST_GROUPS := unit transport fuzz stress integration python $(if $(SANITIZER),,docs)
ifeq ($(SANITIZER),thread)
TEST_GROUPS := unit transport stress integration
TSAN_TCL := put lease batch protocol admin io_threads io_threads_sockets
TCL_ARGS ?= $(TSAN_TCL:%=tests/integration/%_test.tcl)
export TCL_ARGS
endif
test: deps
	$(call build_tests,tests)
	@$(RUN_TESTS) $(TEST_GROUPS)
test-unit:
	$(call build_tests,$(UNIT) binaries $(FAKE_RDMA) $(TEST_MODULES) $(FAULT_SO))
	@$(RUN_TESTS) unit
test-transport:
	$(call build_tests,$(TRANSPORT) binaries $(FAKE_RDMA) $(FAULT_SO))
	@$(RUN_TESTS) transport
test-fuzz:
	$(call build_tests,$(FUZZ))
	@$(RUN_TESTS) fuzz
test-stress:
	$(call build_tests,$(STRESS) binaries $(FAULT_SO))
	@$(RUN_TESTS) stress
# Random bytes, crowds, peers that do not read: ROBUST_SECONDS=3600 of a storm and ROBUST_SEED=7 for
# other bytes.
test-robust:
	$(call build_tests,binaries $(FAULT_SO) $(TOOLS))
	@$(RUN_TESTS) robust
# Nodes, clients, disks and the master of a pool in trouble, for longer than in `make test`:
# CHAOS_SEEDS="5 6 7", STRESS_SECONDS=30 each; and the models of books and cluster, hashed
# anew.
test-chaos:
	$(call build_tests,$(BUILD)/tests/stress/chaos_stress $(MODEL_TESTS) binaries)
	@$(RUN_TESTS) chaos
# Masters that are killed, paused and cut off under Sentinels: HA_ROUNDS=20 HA_SEED=1, half a minute
# each; and the Conductor's, under requests: CONDUCTOR_KILLS=4.
test-ha:
	$(call build_tests,binaries $(TOOLS))
	@$(RUN_TESTS) ha
# The three above and the stress, at once and for longer: what .ci/run adds to the tests.
test-long:
	$(call build_tests,$(STRESS) $(MODEL_TESTS) binaries $(FAULT_SO) $(TOOLS))
	@$(RUN_TESTS) stress robust chaos ha
# Redis' own suite (docs/REDIS-COMPAT.md): REDIS=directory of its source, FILES="unit/expire
# unit/scan" for some of it.
test-redis:
	@test -n "$(REDIS)" || \
	    { echo 'make test-redis REDIS=DIR: DIR is an unpacked source of Redis 7.0'; exit 2; }
	@$(MAKE) --no-print-directory $(PARALLEL) $(BUILD)/tarn-server
	@utils/redis-compat/run.sh --server $(BUILD)/tarn-server $(REDIS) $(FILES)
# Real verbs: soft-RoCE devices in an emulated machine (tests/rdma/README.md).
# TARN_RDMA_TESTS="smoke e2e": some topics of it.
RDMA_TOOLS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/rdma/*.c))
$(BUILD)/tests/rdma/%.o: ALL_CFLAGS += -Imodules
$(RDMA_TOOLS): $(BUILD)/%: $(BUILD)/%.o $(call archives,$(LIBTARN_ROOMS))
	$(call link,$(LIBS_rdma))
RDMA_PROGRAMS := $(filter %/rdma_test,$(TRANSPORT)) $(RDMA_TOOLS)
test-rdma:
	@deps/install.sh --quiet build
	@deps/install.sh --quiet rdma || echo '*** the packages of the group rdma could not be installed'
	$(call build_tests,binaries $(TOOLS) $(RDMA_PROGRAMS))
	@tests/rdma/run.sh --build $(BUILD) $(TARN_RDMA_TESTS)
# The tree installed, Debian packages, what is made of them: tests/packages/*.sh, all at once, as
# many wait for others. So all that they share is built before.
test-packages: deb
	@deps/install.sh --quiet images || \
	    echo '*** the packages of the group images could not be installed'
	$(call build_tests,binaries man $(BUILD)/libtarn.a $(BUILD)/tarn.conf $(TOOLS))
	@$(RUN_TESTS) packages
# Memory of a GPU: the tests of gpu_test.py that want a device; without one they are skipped, with
# the reason.
test-gpu: deps
	$(call build_tests,binaries)
	@TARN_SERVER=$(abspath $(BUILD))/tarn-server TARN_LIB=$(abspath $(BUILD))/libtarn.so \
	    $${PYTHON:-/usr/bin/python3} tests/python/run.py gpu_test.OnAGpu
test-integration:
	$(call build_tests,binaries $(FAKE_RDMA) $(TEST_MODULES) $(FAULT_SO) $(TOOLS) $(EXAMPLES))
	@$(RUN_TESTS) integration docs

# The Python package: PYTHON_TESTS="client_test aio_test" some of its tests, PYTHON=python3.12 with
# another Python than Debian's.
test-python: deps
	$(call build_tests,binaries)
	@$(RUN_TESTS) python

.PHONY: fuzz fuzz-build
fuzz-build: $(FUZZ)
fuzz:
	@deps/install.sh --quiet build lint
	@$(MAKE) --no-print-directory $(PARALLEL) SANITIZER=fuzz CC=clang fuzz-build
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/run-fuzz.sh build/fuzz

# --- daily work ---

.PHONY: run demo lint format bench clean help
run:
	@deps/install.sh --quiet build
	@$(MAKE) --no-print-directory $(PARALLEL) binaries
	@exec src/tarn-server --pool-size $(or $(POOL_SIZE),1gb) --welcome yes $(ARGS)

# Engines, a node and the master are killed under a load that checks each answer (utils/demo):
# ARGS="--seconds 60 --keep".
demo:
	@deps/install.sh --quiet build test
	@$(MAKE) --no-print-directory $(PARALLEL) binaries
	@exec $${PYTHON:-/usr/bin/python3} utils/demo/demo.py $(ARGS)

lint:
	@deps/install.sh --quiet build lint
	@tools/lint.sh
format:
	@find src tests modules -name '*.[ch]' 2>/dev/null | xargs clang-format -i

bench:
	@deps/install.sh --quiet build bench
	@$(MAKE) --no-print-directory $(PARALLEL) binaries $(BUILD)/tests/tools/kv
	@utils/bench/all.sh

clean:
	rm -rf build tests/tmp
	rm -f $(patsubst %,src/%,$(BINARIES) libtarn.so libtarn.so.*) modules/*.so

help:
	@echo 'make                    the binaries: src/tarn-*, src/libtarn.so, modules/*.so'
	@echo 'make run                dependencies, build, a server on port 6479 (POOL_SIZE=1gb ARGS=)'
	@echo 'make demo               engines, node and master killed under a load, two minutes (ARGS=)'
	@echo 'make test               dependencies, build, all tests; the last line says how many passed'
	@echo '  test-unit test-transport test-fuzz test-stress test-integration test-python   parts of it'
	@echo 'make test-robust        random requests, crowds (ROBUST_SECONDS=60 ROBUST_SEED=)'
	@echo 'make test-chaos         a pool of many machines in trouble, two minutes'
	@echo 'make test-ha            failovers under Sentinels and a load that checks, ten minutes'
	@echo 'make test-long          the three above and the stress test, at once'
	@echo 'make test-redis REDIS=DIR   the test suite of Redis 7.0, whose source DIR is, five minutes'
	@echo 'make test-gpu           round trips with memory of a GPU, and their speed'
	@echo 'make test-rdma          real verbs over soft-RoCE, in an emulated machine; needs no device'
	@echo 'make test-packages      the tree and Debian packages, installed and run, four minutes'
	@echo 'make ARCH=arm64          cross-built, in build/arm64; test-unit runs it in an emulator'
	@echo 'make SANITIZER=address test   what shows sanitizers more C (undefined, thread)'
	@echo 'make lint               ranks of rooms, format, static analysis, documents'
	@echo 'make format             clang-format over the tree'
	@echo 'make fuzz               libFuzzer, FUZZ_SECONDS=60 for each target'
	@echo 'make bench              docs/BENCHMARKS.md: its numbers, measured here'
	@echo 'make image              an image for containers, an OCI archive in build/image (FRESH=1)'
	@echo 'make install uninstall  PREFIX=/usr/local DESTDIR='
	@echo 'make dist               a tarball of the source as committed, in build/dist'
	@echo 'make deb                Debian packages, in build/deb (ARCH=arm64)'
	@echo 'make examples           the programs of examples/, in build/release/examples'
	@echo 'make clean'

# --- install ---

# Manual pages are what programs say to --help. RUN starts a program of another architecture.
RUN ?= $(TEST_UNDER)
MAN := $(BINARIES:%=$(BUILD)/man/%.1)
WHAT_tarn-server := the books of a pool of KV-cache blocks, and memory of it
WHAT_tarn-node := lends memory and disks of a machine to a pool of KV-cache blocks
WHAT_tarn-benchmark := measures a tarn-server, its data paths and transfers
WHAT_tarn-check := checks and mends the files of a tarn-server's books
WHAT_tarn-simulate := simulates engines, their pool and their routing
WHAT_tarn-gateway := an OpenAI-compatible front before inference engines
WHAT_tarn-cluster := makes several masters one pool, and moves keys between them
# $(1) the program, $(2) what starts it
man_page = $(Q)mkdir -p $(@D) && $(2) --help > $@.$$$$ && awk -v name=$(1) -v what="$(WHAT_$(1))" \
    -v version=$(VERSION) -v docs=$(DOCDIR) -f tools/man.awk $@.$$$$ > $@.new.$$$$ && \
    mv -f $@.new.$$$$ $@ && rm -f $@.$$$$
.PHONY: man
man: $(MAN)
$(MAN): $(BUILD)/man/%.1: $(BUILD)/% tools/man.awk
	$(call man_page,$*,$(RUN) $<)
# Of the Python package, for the package python3-tarn.
$(BUILD)/man/tarn-gateway.1: utils/python/tarn/gateway/options.py
$(BUILD)/man/tarn-cluster.1: utils/python/tarn/cluster.py
$(BUILD)/man/tarn-gateway.1 $(BUILD)/man/tarn-cluster.1: $(BUILD)/man/tarn-%.1: tools/man.awk | \
                                                         $(BUILD)/$(LIBTARN)
	$(call man_page,tarn-$*,TARN_LIB=$(BUILD)/$(LIBTARN) PYTHONPATH=utils/python \
	    /usr/bin/python3 -m tarn.$*)

# What is not built: a folder, and the files that go there.
UTILS := $(addprefix utils/,pool-health.sh rolling-upgrade.sh scale-out.sh progress.sh)
UNITS := utils/systemd/tarn-server.service utils/systemd/tarn-node@.service
DOCS := $(wildcard docs/*.md docs/*.svg docs/*.png docs/*.html docs/*/*.md)
# The configuration of a service: that of redis.conf.sample, and a pool and books that outlive it.
$(BUILD)/tarn.conf: redis.conf.sample Makefile
	@mkdir -p $(@D)
	$(Q)sed -E -e 's|^dir \.$$|dir /var/lib/tarn|' -e 's|^(pool-path) ""$$|\1 /dev/shm/tarn-pool|' \
	    -e 's|^(shm-socket-perm) 600$$|\1 660|' $< > $@.$$$$ && \
	    [ "$$(diff $< $@.$$$$ | grep -c '^>')" = 3 ] && mv -f $@.$$$$ $@

# The source of what is committed, as a tarball in build/dist.
.PHONY: dist version
dist:
	@tools/dist.sh $(VERSION)
version:
	@echo $(VERSION)

# Debian packages, in build/deb. ARCH=arm64: for another machine, DEB_VERSION: of another version.
.PHONY: deb
deb:
	@deps/install.sh --quiet build packages
	@CCACHE=$(filter ccache,$(CC)) tools/deb.sh $(or $(DEB_VERSION),$(VERSION)) \
	    $(if $(ARCH),--arch $(ARCH)) $(DEB_OPTIONS)

# An image for containers, in build/image. FRESH=1: with Debian's packages as they are today.
.PHONY: image
image: deb
	@deps/install.sh --quiet images
	@FRESH=$(FRESH) packaging/container/build.sh $(VERSION)

.PHONY: install uninstall
install: binaries man $(BUILD)/libtarn.a $(BUILD)/tarn.conf
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR)/pkgconfig $(LIBDIR)/tarn $(INCLUDEDIR) \
	    $(DATADIR) $(MANDIR)/man1 $(UNITDIR) $(SYSUSERSDIR))
	install -d $(addprefix $(DESTDIR)$(DOCDIR)/,examples $(sort $(dir $(DOCS))))
	install -m 755 $(patsubst %,$(BUILD)/%,$(BINARIES)) $(DESTDIR)$(BINDIR)
	install -m 755 $(BUILD)/$(LIBTARN) $(DESTDIR)$(LIBDIR)/libtarn.so.$(VERSION)
	ln -sf libtarn.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(LIBTARN)
	ln -sf $(LIBTARN) $(DESTDIR)$(LIBDIR)/libtarn.so
	install -m 644 $(BUILD)/libtarn.a $(DESTDIR)$(LIBDIR)
	install -m 755 $(MODULE_FILES) $(DESTDIR)$(LIBDIR)/tarn
	install -m 644 $(HEADERS:%=src/%) $(DESTDIR)$(INCLUDEDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|' \
	    -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' tools/tarn.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/tarn.pc
	install -m 755 $(UTILS) $(DESTDIR)$(DATADIR)
	chmod 644 $(DESTDIR)$(DATADIR)/progress.sh
	install -m 644 $(BUILD)/tarn.conf utils/systemd/node.env utils/systemd/logrotate \
	    utils/prometheus/tarn.rules.yml utils/grafana/tarn.json $(DESTDIR)$(DATADIR)
	install -m 644 utils/systemd/sysusers $(DESTDIR)$(SYSUSERSDIR)/tarn.conf
	for unit in $(notdir $(UNITS)); do sed 's|/usr/local/bin|$(BINDIR)|' utils/systemd/$$unit \
	    > $(DESTDIR)$(UNITDIR)/$$unit; done
	install -m 644 $(MAN) $(DESTDIR)$(MANDIR)/man1
	install -m 644 redis.conf.sample README.md CHANGELOG.md LICENSE $(DESTDIR)$(DOCDIR)
	for page in $(DOCS); do install -m 644 $$page $(DESTDIR)$(DOCDIR)/$$page; done
	install -m 644 $(wildcard examples/*.c) $(DESTDIR)$(DOCDIR)/examples
uninstall:
	rm -f $(patsubst %,$(DESTDIR)$(BINDIR)/%,$(BINARIES))
	rm -f $(DESTDIR)$(LIBDIR)/libtarn.so $(DESTDIR)$(LIBDIR)/libtarn.so.* $(DESTDIR)$(LIBDIR)/libtarn.a
	rm -f $(DESTDIR)$(LIBDIR)/pkgconfig/tarn.pc $(HEADERS:%=$(DESTDIR)$(INCLUDEDIR)/%)
	rm -f $(BINARIES:%=$(DESTDIR)$(MANDIR)/man1/%.1) $(DESTDIR)$(SYSUSERSDIR)/tarn.conf
	rm -f $(patsubst utils/systemd/%,$(DESTDIR)$(UNITDIR)/%,$(UNITS))
	rm -rf $(DESTDIR)$(LIBDIR)/tarn $(DESTDIR)$(DATADIR) $(DESTDIR)$(DOCDIR)

-include $(patsubst %.o,%.d,$(call objects,$(foreach r,$(ROOMS),$(call sources,$(r))) \
    $(MAINS:%=src/%/main.c) $(wildcard modules/*/*.c) $(TEST_C) $(FUZZ_C) $(FUZZ_MAIN) $(FAULT_C) \
    $(TEST_MODULES_C) $(FAKE_VERBS_C) $(wildcard tests/tools/*.c tests/rdma/*.c)))
