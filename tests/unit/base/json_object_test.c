#include "base/json_object.h"
#include "../test.h"

static char error[JSON_ERROR_SIZE];

/* {"n": one, "list": them, "text": it}; all may be missing. */
static uint64_t one, *list;
static size_t n_list, cap_list;
static char text_bytes[8];
static struct json_text text;

static const char *json(const char *line) {
    struct json_u64s all = {&list, &n_list, &cap_list, 4};
    struct json_field fields[] = {{"n", JSON_WHOLE, &one, 100, true, false},
                                  {"list", JSON_WHOLES, &all, 0, true, false},
                                  {"text", JSON_TEXT, &text, 0, true, false}};
    one = 7;
    n_list = 0;
    text = (struct json_text){text_bytes, sizeof(text_bytes), 0};
    return json_object_read(span_str(line), fields, 3, error);
}
#define GOOD(line)     CHECK_STR(json(line) == NULL ? "" : error, "")
#define BAD(line, why) CHECK_STR(json(line), why)

static const char *text_is(const char *line) {
    static char out[sizeof(text_bytes) + 1];
    if (json(line) != NULL) return "refused";
    span_to_text(span_of(text.to, text.len), out, sizeof(out));
    return out;
}

TEST(whole_numbers) {
    GOOD("{\"n\":100}");
    CHECK_EQ(one, 100);
    GOOD("{}");
    CHECK_EQ(one, 7);
    GOOD("{\"n\": null, \"n\": 3}");
    CHECK_EQ(one, 3);
    BAD("{\"n\":101}", "n: the number is too large");
    BAD("{\"n\":1.5}", "n: a number with a fraction");
    BAD("{\"n\":1e1}", "n: a number with an exponent");
    BAD("{\"n\":-1}", "n: a number from 0 on is missing");
    BAD("{\"n\":\"1\"}", "n: a number from 0 on is missing");
    BAD("{\"n\":01}", "n: a number from 0 on is missing");
    BAD("{\"n\":1,\"n\":1}", "n: it is there twice");
    BAD("[]", "it is no object");
    BAD("{\"n\":1} x", "something follows the object");
}

TEST(lists_with_signs) {
    GOOD("{\"list\":[0, 12,-1 ,18446744073709551615]}");
    CHECK_EQ(n_list, 4);
    CHECK(list[0] == 0 && list[1] == 12 && list[2] == UINT64_MAX && list[3] == UINT64_MAX);
    GOOD("{\"list\":[-9223372036854775808,100000000000000000,1000000000000000000 ]}");
    CHECK(list[0] == UINT64_C(1) << 63 && list[1] == 100000000000000000 && list[2] / 10 == list[1]);
    GOOD("{\"list\":[]}");
    CHECK_EQ(n_list, 0);
    BAD("{\"list\":[1,2,3,4,5]}", "list: too many numbers");
    CHECK_EQ(n_list, 0);
    BAD("{\"list\":[-9223372036854775809]}", "list: the number is too large");
    BAD("{\"list\":[18446744073709551616]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[1.0]}", "list: a number with a fraction");
    BAD("{\"list\":[01,2]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[1,,2]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[1,2}", "list: the array does not end");
    BAD("{\"list\":[--1]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[true]}", "list: a number from 0 on is missing");
    BAD("{\"list\":{}}", "list: no array");
    BAD("{\"list\":[1", "list: the array does not end");
}

TEST(texts_are_decoded) {
    CHECK_STR(text_is("{\"text\":\"a\\/b\\\\\\\"\\n\"}"), "a/b\\\"\n");
    CHECK_STR(text_is("{\"text\":\"\\u0041\\u00e9\\u20ac\"}"), "A\xc3\xa9\xe2\x82\xac");
    CHECK_STR(text_is("{\"text\":\"\\ud83d\\ude00\"}"), "\xf0\x9f\x98\x80");
    CHECK_STR(text_is("{\"text\":\"12345678\"}"), "12345678");
    CHECK_STR(text_is("{\"text\":null}"), "");
    BAD("{\"text\":\"123456789\"}", "text: it is too long");
    BAD("{\"text\":\"1234567\\u00e9\"}", "text: it is too long");
    BAD("{\"text\":\"\\u0000\"}", "text: no character");
    BAD("{\"text\":\"\\ud83d\"}", "text: no character");
    BAD("{\"text\":\"\\ud83dxude00ab\"}", "text: no character");
    BAD("{\"text\":\"\\ude00\"}", "text: no character");
    CHECK_STR(text_is("{\"text\":\"\xc3\xa9\xe2\x82\xac\"}"), "\xc3\xa9\xe2\x82\xac");
    BAD("{\"text\":\"a\xff\"}", "text: no character");
    BAD("{\"text\":\"\xed\xa0\xbd\"}", "text: no character");
    BAD("{\"text\":\"\xc3\\u00e9\"}", "text: no character");
    BAD("{\"text\":\"\\x\"}", "text: a bad escape");
    BAD("{\"text\":1}", "text: a string is missing");
    BAD("{\"text\":\"a}", "text: a string does not end");
}

/* Of 1 to 19 digits, with blanks between them, in memory that ends where the text does. */
TEST(long_lists) {
    static const char *const blanks[] = {"", " ", "\n\t ", "        "};
    enum { MANY = 2000 };
    struct buf line = {NULL, 0, 0};
    uint64_t want[MANY], x = 1;
    for (size_t round = 0; round < 2; round++) {
        uint64_t most = round == 0 ? 0 : 9999999;
        struct json_u64s all = {&list, &n_list, &cap_list, MANY};
        struct json_field fields[] = {{"list", JSON_WHOLES, &all, most, false, false}};
        buf_clear(&line);
        for (size_t i = 0; i < MANY; i++) {
            x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
            want[i] = x >> 1;
            for (unsigned cut = (unsigned)(x >> 33) % 19; cut > 0; cut--) want[i] /= 10;
            if (most > 0) want[i] %= most + 1;
            buf_printf(&line, "%s%s%llu%s", i == 0 ? "{\"list\":[" : ",", blanks[x >> 62],
                       (unsigned long long)want[i], blanks[x >> 60 & 3 & i]);
        }
        buf_append_str(&line, "]}");
        char *exact = xmemdup(line.data, line.len);
        n_list = 0;
        CHECK(json_object_read(span_of(exact, line.len), fields, 1, error) == NULL);
        CHECK_EQ(n_list, MANY);
        CHECK(memcmp(list, want, sizeof(want)) == 0);
        free(exact);
    }
    buf_free(&line);
    BAD("{\"list\":[1,02,3,4,5555555]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[1,,3,4,5555555]}", "list: a number from 0 on is missing");
    BAD("{\"list\":[1,2,3,44444,5555555]}", "list: too many numbers");
    BAD("{\"list\":[1,2 3,4,5555555]}", "list: the array does not end");
}

/* What nobody asked for is checked, and costs nothing. */
TEST(others_are_passed_over) {
    GOOD("{\"x\":{\"y\":[1,{\"z\":[true,null,-1.5e3]}]},\"n\":1}");
    CHECK_EQ(one, 1);
    BAD("{\"x\":[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}", "nested too deeply");
    BAD("{\"x\":{\"y\":tru}}", "a bad number");
    free(list);
    list = NULL;
    cap_list = 0;
}

TEST_MAIN()
