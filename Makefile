# tarn. Two commands do: `make run` builds and starts a server, `make test` builds and tests everything.
# `make help` lists the rest. Variables: SANITIZER=address|undefined|thread, CC=clang, V=1, CFLAGS, WERROR=, PREFIX, DESTDIR.
#
# How it is put together: a room of the source tree (src/ROOM) is one static archive, build/KIND/libROOM.a. Binaries and
# tests link the archives of the rooms they may use, and no others, so that a room which does not compile stops only what
# needs it (`make -k`). Ranks of the rooms are in tools/rooms.txt; `make lint` checks every include against them.
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
SHELL := /bin/bash
MAKEFLAGS += --no-builtin-rules

VERSION := 0.1.0
SOVERSION := 0
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR ?= $(PREFIX)/share/doc/tarn

# --- the compiler ---------------------------------------------------------------------------------------------------------

SANITIZER ?=
KIND := $(or $(SANITIZER),release)
BUILD := build/$(KIND)
ifeq ($(origin CC),default)
CC := gcc
endif
AR ?= ar
Q := $(if $(V),,@)
, := ,
say = $(if $(V),,@printf '  %-5s %s\n' $(1) '$(2)')

WERROR ?= -Werror
WARN := -Wall -Wextra $(WERROR) -Wno-unused-parameter -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
ifeq ($(SANITIZER),)
CFLAGS ?= -O2 -g
HARDEN := -fstack-protector-strong
else
CFLAGS ?= -O1 -g
# gcc sees ghosts once the sanitizers have rewritten the code.
HARDEN := $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized)
endif
SAN_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SAN_undefined := -fsanitize=undefined -fno-sanitize-recover=undefined
# -Wno-tsan: fences order accesses to memory that another process writes; ThreadSanitizer does not see those.
SAN_thread := -fsanitize=thread $(if $(findstring clang,$(CC)),,-Wno-tsan)
SAN_fuzz := -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
SAN_FLAGS := $(SAN_$(SANITIZER))
ifneq ($(SANITIZER),)
ifeq ($(SAN_FLAGS),)
$(error SANITIZER=$(SANITIZER): address, undefined or thread)
endif
SAN_FLAGS += -DTARN_SANITIZER=1
endif

ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE -DTARN_VERSION='"$(VERSION)"' -Isrc $(CFLAGS) $(WARN) -fPIC -fvisibility=hidden \
             -fno-strict-aliasing -fno-omit-frame-pointer -pthread $(HARDEN) $(SAN_FLAGS)
ALL_LDFLAGS = -pthread -Wl,--as-needed -Wl,-z,relro,-z,now $(SAN_FLAGS) $(LDFLAGS)
LIBS := -levent_core -lsodium -lxxhash -lpcre2-8 -lhiredis -ldl -lm
# jemalloc replaces malloc in our own processes: not in the library that others load, and not under a sanitizer.
MALLOC_LIBS := $(if $(SANITIZER),,-Wl$(,)--no-as-needed -ljemalloc -Wl$(,)--as-needed)

# Everything is written beside its place and renamed: two makes in one tree do not read each other's halves.
# Objects are built anew when the compiler or its flags change.
FLAGS_FILE := $(BUILD)/flags
FLAGS_NOW := $(CC) $(ALL_CFLAGS)
ifneq ($(filter-out clean help lint,$(or $(MAKECMDGOALS),all)),)
ifneq ($(FLAGS_NOW),$(file < $(FLAGS_FILE)))
$(shell mkdir -p $(BUILD))
$(file > $(FLAGS_FILE),$(FLAGS_NOW))
endif
endif
$(FLAGS_FILE): ;

$(BUILD)/%.o: %.c $(FLAGS_FILE)
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@.$$$$ && mv -f $@.$$$$ $@

# --- rooms: users before the used, which is the order of linking ------------------------------------------------------------

ROOMS := server benchmark cmd client host engine store transport pool net resp base

DEPS_base :=
DEPS_resp := base
DEPS_net := base
DEPS_pool := base
DEPS_transport := base
DEPS_store := base
DEPS_engine := transport pool resp net base
DEPS_host := engine transport pool net resp base
DEPS_client := host engine transport pool net resp base
DEPS_cmd := host engine store transport pool net resp base
DEPS_server := cmd host engine store transport pool net resp base
DEPS_benchmark := client host engine transport pool net resp base

# The source of a room, without the main of a binary.
sources = $(filter-out src/server/main.c src/benchmark/main.c,$(wildcard src/$(1)/*.c src/$(1)/*/*.c))
objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
archives = $(patsubst %,$(BUILD)/lib%.a,$(1))

define room_rules
$$(BUILD)/lib$(1).a: $(call objects,$(call sources,$(1)))
	$$(call say,AR,$$@)
	@mkdir -p $$(@D)
	$$(Q)$$(AR) qcs $$@.$$$$$$$$ $$^ && mv -f $$@.$$$$$$$$ $$@
endef
$(foreach r,$(ROOMS),$(eval $(call room_rules,$(r))))

# --- binaries ---------------------------------------------------------------------------------------------------------------

BINARIES := tarn-server tarn-benchmark
LIBTARN := libtarn.so.$(SOVERSION)
LIBTARN_ROOMS := client $(DEPS_client)

.PHONY: all binaries
all: binaries
binaries: $(patsubst %,$(BUILD)/%,$(BINARIES) $(LIBTARN) libtarn.so)

define link
	$(call say,LINK,$@)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@.$$$$ $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(1) && mv -f $@.$$$$ $@
endef

$(BUILD)/tarn-server: $(BUILD)/src/server/main.o $(call archives,server $(DEPS_server))
	$(call link,-rdynamic $(MALLOC_LIBS))
$(BUILD)/tarn-benchmark: $(BUILD)/src/benchmark/main.o $(call archives,benchmark $(DEPS_benchmark))
	$(call link,$(MALLOC_LIBS))

# All of client, and what it pulls in from the rooms below. What is visible: src/libtarn.map.
$(BUILD)/$(LIBTARN): $(call archives,$(LIBTARN_ROOMS)) src/libtarn.map
	$(call say,LINK,$@)
	$(Q)$(CC) -shared $(ALL_LDFLAGS) -Wl,-soname,$(LIBTARN) -Wl,--version-script=src/libtarn.map $(if $(SANITIZER),,-Wl$(,)-z$(,)defs) \
	    -o $@.$$$$ -Wl,-u,tarn_status_text -Wl,--whole-archive $(BUILD)/libclient.a -Wl,--no-whole-archive \
	    $(call archives,$(DEPS_client)) $(LIBS) && mv -f $@.$$$$ $@
$(BUILD)/libtarn.so: $(BUILD)/$(LIBTARN)
	$(Q)ln -sf $(LIBTARN) $@
# One object, in which only what is public has kept its name.
$(BUILD)/libtarn.a: $(call archives,$(LIBTARN_ROOMS))
	$(call say,AR,$@)
	$(Q)$(CC) -r -nostdlib -o $(BUILD)/tarn.o -Wl,-u,tarn_status_text -Wl,--whole-archive $(BUILD)/libclient.a \
	    -Wl,--no-whole-archive $(call archives,$(DEPS_client))
	$(Q)objcopy --localize-hidden $(BUILD)/tarn.o
	$(Q)rm -f $@ && $(AR) qcs $@ $(BUILD)/tarn.o
# tarn_status.h is public, and the room that implements it does not know about libraries.
$(BUILD)/src/base/status.o: ALL_CFLAGS += -fvisibility=default

# The release binaries are also found in src/. Replaced by renaming, so that a running one is left alone.
ifeq ($(SANITIZER),)
binaries: $(patsubst %,src/%,$(BINARIES) $(LIBTARN)) src/libtarn.so
$(patsubst %,src/%,$(BINARIES) $(LIBTARN)): src/%: $(BUILD)/%
	$(Q)cp -f $< $@.$$$$ && mv -f $@.$$$$ $@
src/libtarn.so: src/$(LIBTARN)
	$(Q)ln -sf $(LIBTARN) $@
endif

# --- tests --------------------------------------------------------------------------------------------------------------------

# A test program is a file with a main or TEST_MAIN (tests/unit/test.h); the other files beside it are its helpers.
TEST_C := $(wildcard tests/unit/*.c tests/unit/*/*.c tests/transport/*.c tests/stress/*.c)
define IS_MAIN
'^(int )?main *\(|^TEST_MAIN'
endef
TEST_MAIN := $(if $(TEST_C),$(shell grep -lE $(IS_MAIN) $(TEST_C)))
TEST_HELP := $(filter-out $(TEST_MAIN),$(TEST_C))
helpers_of = $(filter $(patsubst %/,%,$(dir $(1)))/%,$(foreach h,$(TEST_HELP),$(if $(filter $(dir $(1)),$(dir $(h))),$(h))))
program = $(patsubst %.c,$(BUILD)/%,$(1))

# $(1) source with main, $(2) rooms
define test_rules
$(call program,$(1)): $(call objects,$(1) $(call helpers_of,$(1))) $(call archives,$(2))
	$$(call link,)
endef
room_of = $(word 3,$(subst /, ,$(1)))
UNIT_MAIN := $(filter tests/unit/%,$(TEST_MAIN))
TRANSPORT_MAIN := $(filter tests/transport/%,$(TEST_MAIN))
STRESS_MAIN := $(filter tests/stress/%,$(TEST_MAIN))
$(foreach t,$(UNIT_MAIN),$(eval $(call test_rules,$(t),$(call room_of,$(t)) $(DEPS_$(call room_of,$(t))))))
$(foreach t,$(TRANSPORT_MAIN) $(STRESS_MAIN),$(eval $(call test_rules,$(t),$(LIBTARN_ROOMS))))

# A fuzz target is tests/fuzz/NAME_fuzz.c. It links the room that its name begins with (resp_fuzz, host_frame_fuzz), or
# all that a server has. `make test` runs it with standalone_main.c over its seeds and mutations of them; `make fuzz` with
# libFuzzer.
FUZZ_C := $(wildcard tests/fuzz/*_fuzz.c)
FUZZ_SECONDS ?= 60
FUZZ_MUTATIONS ?= 5000
export FUZZ_MUTATIONS
fuzz_room = $(filter $(ROOMS),$(firstword $(subst _, ,$(notdir $(1)))))
fuzz_rooms = $(if $(call fuzz_room,$(1)),$(call fuzz_room,$(1)) $(DEPS_$(call fuzz_room,$(1))),server $(DEPS_server))
define fuzz_rules
$(call program,$(1)): $(call objects,$(1)) $(if $(filter fuzz,$(SANITIZER)),,$(BUILD)/tests/fuzz/standalone_main.o) $(call archives,$(call fuzz_rooms,$(1)))
	$$(call link,$(if $(filter fuzz,$(SANITIZER)),-fsanitize=fuzzer))
endef
$(foreach t,$(FUZZ_C),$(eval $(call fuzz_rules,$(t))))

FAULT_C := $(wildcard tests/fault/*.c)
FAULT_SO := $(patsubst %.c,$(BUILD)/%.so,$(FAULT_C))
$(FAULT_SO): $(BUILD)/%.so: $(BUILD)/%.o
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -pthread -o $@ $< -ldl

# The examples of docs/LIBTARN.md see what a user sees: the public headers and the library.
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
$(EXAMPLES): $(BUILD)/%: %.c $(BUILD)/libtarn.so src/tarn.h src/tarn_status.h
	$(call say,CC,$<)
	@mkdir -p $(@D) $(BUILD)/include && cp src/tarn.h src/tarn_status.h $(BUILD)/include
	$(Q)$(CC) -Wall -Wextra $(WERROR) $(CFLAGS) $(SAN_FLAGS) -I$(BUILD)/include $< -o $@.$$$$ -L$(BUILD) -ltarn -Wl,-rpath,'$$ORIGIN/..' && \
	    mv -f $@.$$$$ $@

UNIT := $(call program,$(UNIT_MAIN))
TRANSPORT := $(call program,$(TRANSPORT_MAIN))
STRESS := $(call program,$(STRESS_MAIN))
FUZZ := $(call program,$(FUZZ_C))

.PHONY: deps tests test test-unit test-transport test-fuzz test-stress test-integration
deps:
	@deps/install.sh --quiet build test
# Everything that tests run, built as far as it compiles: what is missing counts as a failed test.
tests: binaries $(EXAMPLES) $(FAULT_SO) $(UNIT) $(TRANSPORT) $(STRESS) $(FUZZ)

JOBS ?= $(shell nproc)
PARALLEL = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))
RUN_TESTS = tools/run-tests.sh --build $(BUILD) --kind $(KIND)
# Builds what it can, and writes down what should be there: run-tests.sh does not guess.
define build_tests
	@$(MAKE) --no-print-directory $(if $(V),,-s) -k $(PARALLEL) $(1) || echo '*** not everything was built; what is missing counts as failed'
	@printf '%s\n' $(UNIT:%=unit:%) $(TRANSPORT:%=transport:%) $(FUZZ:%=fuzz:%) $(STRESS:%=stress:%) > $(BUILD)/tests.list
endef

test: deps
	$(call build_tests,tests)
	@$(RUN_TESTS) unit transport fuzz stress integration docs
test-unit:
	$(call build_tests,$(UNIT) binaries $(FAULT_SO))
	@$(RUN_TESTS) unit
test-transport:
	$(call build_tests,$(TRANSPORT) $(FAULT_SO))
	@$(RUN_TESTS) transport
test-fuzz:
	$(call build_tests,$(FUZZ))
	@$(RUN_TESTS) fuzz
test-stress:
	$(call build_tests,$(STRESS) binaries $(FAULT_SO))
	@$(RUN_TESTS) stress
test-integration:
	$(call build_tests,binaries $(FAULT_SO))
	@$(RUN_TESTS) integration docs

.PHONY: fuzz fuzz-build
fuzz-build: $(FUZZ)
fuzz:
	@deps/install.sh --quiet build lint
	@$(MAKE) --no-print-directory $(PARALLEL) SANITIZER=fuzz CC=clang fuzz-build
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/run-fuzz.sh build/fuzz

# --- daily work ------------------------------------------------------------------------------------------------------------------

.PHONY: run lint format bench clean help
run:
	@deps/install.sh --quiet build
	@$(MAKE) --no-print-directory $(PARALLEL) binaries
	@exec src/tarn-server --pool-size $(or $(POOL_SIZE),1gb) --welcome yes $(ARGS)

lint:
	@deps/install.sh --quiet build lint
	@tools/lint.sh
format:
	@find src tests modules -name '*.[ch]' 2>/dev/null | xargs clang-format -i

bench:
	@deps/install.sh --quiet build bench
	@$(MAKE) --no-print-directory $(PARALLEL) binaries
	@utils/bench/all.sh

clean:
	rm -rf build tests/tmp
	rm -f $(patsubst %,src/%,$(BINARIES) libtarn.so libtarn.so.*)

help:
	@echo 'make                    the binaries: src/tarn-server, src/tarn-benchmark, src/libtarn.so'
	@echo 'make run                dependencies, build, and a server with a pool of 1gb on port 6479 (POOL_SIZE=, ARGS=)'
	@echo 'make test               dependencies, build, all tests; one closing line says how many passed'
	@echo '  test-unit test-transport test-fuzz test-stress test-integration   parts of it'
	@echo 'make SANITIZER=address test   the same on sanitizer binaries (address, undefined, thread)'
	@echo 'make lint               ranks of rooms, format, static analysis, documents'
	@echo 'make format             clang-format over the tree'
	@echo 'make fuzz               libFuzzer, FUZZ_SECONDS=60 for each target'
	@echo 'make bench              docs/BENCHMARKS.md: its numbers, measured here'
	@echo 'make install uninstall  PREFIX=/usr/local DESTDIR='
	@echo 'make clean'

# --- install -----------------------------------------------------------------------------------------------------------------------

.PHONY: install uninstall
install: binaries $(BUILD)/libtarn.a
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(DOCDIR)
	install -m 755 $(BUILD)/tarn-server $(BUILD)/tarn-benchmark $(DESTDIR)$(BINDIR)
	install -m 755 $(BUILD)/$(LIBTARN) $(DESTDIR)$(LIBDIR)/libtarn.so.$(VERSION)
	ln -sf libtarn.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(LIBTARN)
	ln -sf $(LIBTARN) $(DESTDIR)$(LIBDIR)/libtarn.so
	install -m 644 $(BUILD)/libtarn.a $(DESTDIR)$(LIBDIR)
	install -m 644 src/tarn.h src/tarn_status.h $(DESTDIR)$(INCLUDEDIR)
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' tools/tarn.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/tarn.pc
	install -m 644 redis.conf.sample README.md CHANGELOG.md LICENSE $(DESTDIR)$(DOCDIR)
uninstall:
	rm -f $(patsubst %,$(DESTDIR)$(BINDIR)/%,$(BINARIES))
	rm -f $(DESTDIR)$(LIBDIR)/libtarn.so $(DESTDIR)$(LIBDIR)/libtarn.so.* $(DESTDIR)$(LIBDIR)/libtarn.a
	rm -f $(DESTDIR)$(LIBDIR)/pkgconfig/tarn.pc $(DESTDIR)$(INCLUDEDIR)/tarn.h $(DESTDIR)$(INCLUDEDIR)/tarn_status.h
	rm -rf $(DESTDIR)$(DOCDIR)

-include $(patsubst %.o,%.d,$(call objects,$(foreach r,$(ROOMS),$(call sources,$(r))) src/server/main.c src/benchmark/main.c \
    $(TEST_C) $(FUZZ_C) $(FAULT_C) tests/fuzz/standalone_main.c))
