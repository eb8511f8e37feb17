/* Trace contexts: what W3C Trace Context lets pass, and what it does not. */
#include "base/traceparent.h"

#include "../test.h"

#define GOOD "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

static bool reads(const char *text) {
    struct traceparent p;
    return traceparent_read(span_str(text), &p);
}

TEST(version_00) {
    struct traceparent p;
    CHECK(traceparent_read(SPAN(GOOD), &p));
    CHECK(strcmp(p.text, GOOD) == 0);
    CHECK(traceparent_is_sampled(&p));
    CHECK(memcmp(p.text + TRACEPARENT_TRACE, "4bf92f35", 8) == 0);
    CHECK(memcmp(p.text + TRACEPARENT_SPAN, "00f067aa", 8) == 0);
    CHECK(traceparent_read(SPAN("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe"), &p));
    CHECK(!traceparent_is_sampled(&p));
    CHECK(traceparent_read(SPAN("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0b"), &p));
    CHECK(traceparent_is_sampled(&p));
}

TEST(ids_that_are_none) {
    CHECK(!reads("00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));
    CHECK(reads("00-00000000000000000000000000000001-0000000000000001-00"));
}

TEST(other_forms) {
    CHECK(!reads(""));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"));
    CHECK(!reads(GOOD "0"));
    CHECK(!reads(GOOD "-"));
    CHECK(!reads("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"));
    CHECK(!reads("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01"));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01"));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01"));
    CHECK(!reads("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"));
    CHECK(!reads("0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    CHECK(!reads(" 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"));
    struct traceparent p;
    CHECK(!traceparent_read(span_of(NULL, 55), &p)); /* a large argument that was not kept */
}

TEST(later_versions) {
    struct traceparent p;
    CHECK(!reads("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    CHECK(traceparent_read(SPAN("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), &p));
    CHECK(strcmp(p.text, GOOD) == 0);
    CHECK(
        traceparent_read(SPAN("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what"), &p));
    CHECK(strcmp(p.text, GOOD) == 0);
    CHECK(!reads("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01what"));
}

TEST_MAIN()
