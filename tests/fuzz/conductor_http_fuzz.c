/* Bodies of any bytes to the HTTP paths of modules/conductor: each has exactly one answer, which is
 * whole, and the route adds up. An input is some requests with a line "--" between them; the first
 * byte of each says which path it is for (r, u, q, h), in capitals: in msgpack; "~": this server
 * begins or ceases to lead. */
#include "../unit/conductor/fake.h"
#include "base/json_object.h"
#include "conductor/conductor.h"
#include "kvevents/unpack.h"

static const struct {
    char name;
    const char *path;
} paths[] = {{'r', "/register"}, {'u', "/unregister"}, {'q', "/query"}, {'h', "/query_by_hash"}};

static void whole(const struct buf *answer, bool msgpack) {
    static const char *const known[] = {"200 ", "400 ", "404 ", "503 "};
    char error[JSON_ERROR_SIZE];
    bool is_known = false;
    TARN_ASSERT(answer != NULL && answer->len > 4);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        is_known |= memcmp(answer->data, known[i], 4) == 0;
    TARN_ASSERT(is_known);
    if (!msgpack) {
        struct span json = span_of(answer->data + 4, answer->len - 4);
        TARN_ASSERT(json_object_read(json, NULL, 0, error) == NULL);
        return;
    }
    struct unpack u = {answer->data + 4, answer->len - 4};
    struct unpack_value v;
    TARN_ASSERT(unpack_next(&u, &v) && v.type == UNPACK_MAP && unpack_pass(&u, &v) && u.left == 0);
}

static void one_request(struct span s) {
    if (s.len == 0) return;
    if (s.data[0] == '~') {
        fake.leads = !fake.leads;
        tarn_module_v1.role_changed(fake.leads);
    }
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (ascii_lower(s.data[0]) != paths[i].name) continue;
        bool msgpack = s.data[0] != paths[i].name;
        fake.content_type = msgpack ? "application/msgpack" : NULL;
        whole(fake_post(paths[i].path, span_of(s.data + 1, s.len - 1)), msgpack);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const words[] = {"ranks", "8", "requests", "6", "index-size", "1mb", NULL};
    static const char between[] = "\n--\n";
    const size_t len = sizeof(between) - 1;
    const char *at = (const char *)data, *stop = at + size, *next;
    if (size > 65536) return 0;
    fake.kept_max = 4000;
    fake_load(words);
    while ((next = memmem(at, (size_t)(stop - at), between, len)) != NULL) {
        one_request(span_of(at, (size_t)(next - at)));
        at = next + len;
    }
    one_request(span_of(at, (size_t)(stop - at)));
    route_check(conductor_route);
    fake_unload();
    fake_kept_clear();
    return 0;
}
