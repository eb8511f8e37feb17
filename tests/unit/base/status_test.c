#include "base/status.h"

#include "../test.h"

TEST(status_every_one_has_its_text) {
    for (int s = TARN_OK; s >= TARN_ECANCELED; s--) {
        const char *text = tarn_status_text((tarn_status)s);
        CHECK(text != NULL && text[0] != '\0');
        CHECK(strcmp(text, "unknown status") != 0);
        for (int t = s + 1; t <= TARN_OK; t++) CHECK(strcmp(text, tarn_status_text((tarn_status)t)) != 0);
    }
    CHECK_STR(tarn_status_text((tarn_status)-9999), "unknown status");
    CHECK_STR(tarn_status_text((tarn_status)1), "unknown status");
}

TEST_MAIN()
