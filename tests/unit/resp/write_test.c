#include <math.h>

#include "../test.h"
#include "resp/resp.h"

/* Writes with one statement and compares. */
#define WRITES(call, literal)                                                                      \
    do {                                                                                           \
        struct buf b = {0}, *out = &b;                                                             \
        call;                                                                                      \
        CHECK_BYTES(b.data, b.len, literal);                                                       \
        buf_free(out);                                                                             \
    } while (0)

TEST(write_simple_kinds) {
    WRITES(resp_write_simple(out, "OK"), "+OK\r\n");
    WRITES(resp_write_error(out, "ERR no"), "-ERR no\r\n");
    WRITES(resp_write_error(out, "ERR a\r\nb"), "-ERR a  b\r\n");
    WRITES(resp_write_int(out, 0), ":0\r\n");
    WRITES(resp_write_int(out, -1), ":-1\r\n");
    WRITES(resp_write_int(out, INT64_MIN), ":-9223372036854775808\r\n");
    WRITES(resp_write_int(out, INT64_MAX), ":9223372036854775807\r\n");
    WRITES(resp_write_bulk(out, "a\0b", 3), "$3\r\na\0b\r\n");
    WRITES(resp_write_bulk(out, NULL, 0), "$0\r\n\r\n");
    WRITES(resp_write_bulk(out, "0123456789", 10), "$10\r\n0123456789\r\n");
    WRITES(resp_write_bulk_header(out, SIZE_MAX), "$18446744073709551615\r\n");
    WRITES(resp_write_array(out, 123), "*123\r\n");
}

TEST(write_kinds_of_resp3) {
    WRITES(resp_write_null(out, 2), "$-1\r\n");
    WRITES(resp_write_null(out, 3), "_\r\n");
    WRITES(resp_write_null_array(out, 2), "*-1\r\n");
    WRITES(resp_write_null_array(out, 3), "_\r\n");
    WRITES(resp_write_map(out, 2, 4), "*8\r\n");
    WRITES(resp_write_map(out, 3, 4), "%4\r\n");
    WRITES(resp_write_set(out, 2, 4), "*4\r\n");
    WRITES(resp_write_set(out, 3, 4), "~4\r\n");
    WRITES(resp_write_push(out, 2, 3), "*3\r\n");
    WRITES(resp_write_push(out, 3, 3), ">3\r\n");
    WRITES(resp_write_bool(out, 2, true), ":1\r\n");
    WRITES(resp_write_bool(out, 2, false), ":0\r\n");
    WRITES(resp_write_bool(out, 3, true), "#t\r\n");
    WRITES(resp_write_bool(out, 3, false), "#f\r\n");
    WRITES(resp_write_verbatim(out, 2, "txt", "abc", 3), "$3\r\nabc\r\n");
    WRITES(resp_write_verbatim(out, 3, "txt", "abc", 3), "=7\r\ntxt:abc\r\n");
}

TEST(write_doubles) {
    WRITES(resp_write_double(out, 3, 1.5), ",1.5\r\n");
    WRITES(resp_write_double(out, 2, 1.5), "$3\r\n1.5\r\n");
    WRITES(resp_write_double(out, 3, 0.1), ",0.10000000000000001\r\n");
    WRITES(resp_write_double(out, 3, -3), ",-3\r\n");
    WRITES(resp_write_double(out, 3, INFINITY), ",inf\r\n");
    WRITES(resp_write_double(out, 3, -INFINITY), ",-inf\r\n");
    WRITES(resp_write_double(out, 2, -INFINITY), "$4\r\n-inf\r\n");
    WRITES(resp_write_double(out, 3, -NAN), ",nan\r\n");
    WRITES(resp_write_double(out, 3, -1.7976931348623157e308), ",-1.7976931348623157e+308\r\n");
}

/* A buffer that is always just full: every writer must ask for enough. Sanitizers look on. */
TEST(write_reserves_enough) {
    for (size_t spare = 0; spare < 40; spare++) {
        struct buf b = {0};
        char bytes[40] = {0};
        for (int kind = 0; kind < 9; kind++) {
            b.data = xrealloc(b.data, b.len + spare + 1);
            b.cap = b.len + spare;
            switch (kind) {
            case 0: resp_write_int(&b, INT64_MIN); break;
            case 1: resp_write_bulk(&b, bytes, spare); break;
            case 2: resp_write_array(&b, SIZE_MAX); break;
            case 3: resp_write_null(&b, 2); break;
            case 4: resp_write_double(&b, 3, -1.7976931348623157e308); break;
            case 5: resp_write_verbatim(&b, 3, "txt", bytes, spare); break;
            case 6: resp_write_error(&b, "ERR some words"); break;
            case 7: resp_write_bool(&b, 3, true); break;
            default: resp_write_bulk_header(&b, SIZE_MAX);
            }
            CHECK(b.len <= b.cap);
        }
        buf_free(&b);
    }
}

TEST_MAIN()
