# tarn: see README.md for the two commands (make run, make test).
#
# Rooms and their ranks are in tools/rooms.txt; `make lint` checks includes against it.
.DEFAULT_GOAL := all
SHELL := /bin/bash

SANITIZER ?=
CC ?= gcc
BUILD := build/$(if $(SANITIZER),$(SANITIZER),release)
VERSION := 0.1.0

WARN := -Wall -Wextra -Werror -Wno-unused-parameter -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) -D_GNU_SOURCE -DTARN_VERSION='"$(VERSION)"' -Isrc -Isrc/base -fPIC -fvisibility=hidden \
             -fno-strict-aliasing -fno-omit-frame-pointer -MMD -MP $(SAN_FLAGS)
SAN_FLAGS :=
# jemalloc replaces malloc in our processes, not in the library that others load, and not under a sanitizer.
MALLOC_LIBS := -ljemalloc
ifneq ($(SANITIZER),)
MALLOC_LIBS :=
CFLAGS := -O1 -g
ALL_CFLAGS += -DTARN_SANITIZER
endif
ifeq ($(SANITIZER),address)
SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
endif
ifeq ($(SANITIZER),undefined)
SAN_FLAGS := -fsanitize=undefined -fno-sanitize-recover=undefined
endif
ifeq ($(SANITIZER),thread)
SAN_FLAGS := -fsanitize=thread
endif

LIBS := -levent_core -lsodium -lxxhash -lpcre2-8 -lhiredis -lpthread -ldl -lm

# --- rooms: each a static archive. Order is link order: users first. ---
ROOMS := cmd client host engine store transport pool net resp base
room_srcs = $(wildcard src/$(1)/*.c) $(wildcard src/$(1)/*/*.c)
define room_rules
$(1)_OBJS := $$(patsubst %.c,$$(BUILD)/%.o,$$(call room_srcs,$(1)))
$$(BUILD)/lib$(1).a: $$($(1)_OBJS)
	@rm -f $$@; ar rcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(eval $(call room_rules,$(r))))

# What a room's tests link: itself and every room of a lower rank it may call.
DEPS_base :=
DEPS_resp := base
DEPS_net := base
DEPS_pool := base
DEPS_transport := base
DEPS_store := base
DEPS_engine := transport pool base
DEPS_host := engine transport pool net base
DEPS_client := host engine transport pool resp net base
DEPS_cmd := host engine store transport pool net resp base

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

