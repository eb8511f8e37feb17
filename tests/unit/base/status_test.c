#include "base/errors.h"

#include "../test.h"

TEST(status_every_one_has_its_text) {
    for (int s = TARN_OK; s >= TARN_ELATER; s--) {
        const char *text = tarn_status_text((tarn_status)s);
        CHECK(text != NULL && text[0] != '\0');
        CHECK(strcmp(text, "unknown status") != 0);
        for (int t = s + 1; t <= TARN_OK; t++)
            CHECK(strcmp(text, tarn_status_text((tarn_status)t)) != 0);
    }
    CHECK_STR(tarn_status_text((tarn_status)-9999), "unknown status");
    CHECK_STR(tarn_status_text((tarn_status)1), "unknown status");
}

TEST(status_what_is_on_the_wire_is_read_as_what_was_said) {
    for (int s = TARN_OK; s >= TARN_ELATER; s--) {
        const char *code = error_code((tarn_status)s);
        char line[64];
        if (code[0] == '\0') continue;
        snprintf(line, sizeof(line), "%s some text", code);
        CHECK_EQ(error_read(line), strcmp(code, "ERR") == 0 ? TARN_ERR : s);
    }
    CHECK_EQ(error_read("LIMIT"), TARN_ELIMIT);
    CHECK_EQ(error_read("NOREPLICAS Not enough good replicas to write."), TARN_EREADONLY);
    CHECK_EQ(error_read("MASTERDOWN x"), TARN_ELOADING);
    CHECK_EQ(error_read("LIMITED x"), TARN_ERR);
    CHECK_EQ(error_read(""), TARN_ERR);
    CHECK_EQ(error_read(" LIMIT"), TARN_ERR);
}

TEST(status_later_is_bounded) {
    CHECK_EQ(error_later_ms("TRYAGAIN 250 ghosts"), 250);
    CHECK_EQ(error_later_ms("TRYAGAIN 99999999999999999999999 x"), ERROR_LATER_MAX_MS);
    CHECK_EQ(error_later_ms("TRYAGAIN x"), 0);
    CHECK_EQ(error_later_ms("TRYAGAIN"), 0);
    CHECK_EQ(error_later_ms("LOADING 5"), 0);
}

TEST(a_status_comes_with_the_reason) {
    const char *why = NULL;
    CHECK_EQ(status_fail(TARN_EIO, &why, "%s: %d", "it", 7), TARN_EIO);
    CHECK_STR(why, "it: 7");
}

TEST_MAIN()
