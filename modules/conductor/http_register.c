/* POST /register and /unregister: CONDUCTOR.ADD and REMOVE by other names. */
#include "base/assert.h"
#include "conductor/conductor.h"
#include "conductor/enroll.h"
#include "conductor/http.h"
#include "conductor/kept.h"
#include "kvevents/follow.h"

struct said {
    struct http_member endpoint, replay, type, model, lora, tenant, instance, salt, url;
    uint64_t block, rank;
};

static const char *const member_names[ENGINE_FIELDS] = {[ENGINE_URL] = "url",
                                                        [ENGINE_EVENTS] = "endpoint",
                                                        [ENGINE_REPLAY] = "replay_endpoint",
                                                        [ENGINE_MODEL] = "modelname",
                                                        [ENGINE_LORA] = "lora_name",
                                                        [ENGINE_TENANT] = "tenant_id",
                                                        [ENGINE_SALT] = "additionalsalt",
                                                        [ENGINE_BLOCK] = "block_size"};

/* As a command that writes. false: it has answered why not. */
static bool may_write(const struct tarn_http_request *r) {
    const char *why = conductor_services->write_refusal();
    if (why != NULL) http_refuse(r, 503, "%s", why);
    return why == NULL;
}

static unsigned status_of(tarn_status status) {
    switch (status) {
    case TARN_EINVAL:
    case TARN_EEXISTS: return 400;
    case TARN_ELIMIT:
    case TARN_EREADONLY:
    case TARN_ELATER: return 503;
    default: return 500;
    }
}

static void register_refuse(const struct tarn_http_request *r, const struct refusal *why) {
    const char *member = why->field < ENGINE_FIELDS ? member_names[why->field] : NULL;
    http_refuse(r, status_of(why->status), "%s%s%s", member != NULL ? member : "",
                member != NULL ? ": " : "", why->text);
}

/* --- /register --- */

static const char *type_error(struct span type) {
    if (span_case_eq(type, "vllm") || span_case_eq(type, "sglang")) return NULL;
    if (span_case_eq(type, "mooncake"))
        return "type: the events of a Mooncake pool are not followed: the pool here is this "
               "server's own, and known without them";
    return "type: must be vLLM or SGLang";
}

/* false: it has answered what is wrong. */
static bool said_read(const struct tarn_http_request *r, struct said *s) {
    char error[JSON_ERROR_SIZE];
    struct json_field fields[] = {
        HTTP_NEEDED("endpoint", s->endpoint, KVEVENTS_ENDPOINT - 1),
        HTTP_MAYBE("replay_endpoint", s->replay, KVEVENTS_ENDPOINT - 1),
        HTTP_NEEDED("type", s->type, ROUTE_NAME_MAX),
        HTTP_NEEDED("modelname", s->model, ROUTE_NAME_MAX),
        HTTP_MAYBE("lora_name", s->lora, ROUTE_NAME_MAX),
        HTTP_MAYBE("tenant_id", s->tenant, ROUTE_NAME_MAX),
        HTTP_NEEDED("instance_id", s->instance, ROUTE_URL_MAX),
        HTTP_MAYBE("additionalsalt", s->salt, ROUTE_NAME_MAX),
        HTTP_MAYBE("url", s->url, ROUTE_URL_MAX),
        {"block_size", JSON_WHOLE, &s->block, 1u << 20, false, false},
        {"dp_rank", JSON_WHOLE, &s->rank, ROUTE_RANKS_MAX - 1, true, false}};
    s->rank = 0;
    const char *wrong = http_body_read(r, fields, ARRAY_LEN(fields), error);
    if (wrong == NULL && s->endpoint.is.len == 0) wrong = "endpoint: it is empty";
    if (wrong == NULL && s->model.is.len == 0) wrong = "modelname: it is empty";
    if (wrong == NULL && s->block == 0) wrong = "block_size: must be 1 or more";
    if (wrong == NULL && !span_is_name(http_member_of(&s->instance), ROUTE_NAME_MAX))
        wrong = "instance_id: must be 1 to 128 of A-Z a-z 0-9 . _ -";
    if (wrong == NULL) wrong = type_error(http_member_of(&s->type));
    if (wrong != NULL) http_refuse(r, 400, "%s", wrong);
    return wrong == NULL;
}

/* What is said in place of what was; what is not said, and what nobody can say here (ROLE, HOST and
 * so on), stays as the engine is registered. */
static void said_over(const struct said *s, char block[24], struct registration *x) {
    struct span *f = x->field, tenant = http_tenant_of(&s->tenant);
    if (s->url.is.len > 0) f[ENGINE_URL] = http_member_of(&s->url);
    /* What routers of that kind go by. */
    if (f[ENGINE_URL].len == 0) f[ENGINE_URL] = x->id;
    if (s->replay.is.len > 0 || !span_eq(f[ENGINE_EVENTS], http_member_of(&s->endpoint)))
        f[ENGINE_REPLAY] = http_member_of(&s->replay);
    f[ENGINE_EVENTS] = http_member_of(&s->endpoint);
    f[ENGINE_MODEL] = http_member_of(&s->model);
    if (s->lora.is.len > 0 && !span_eq(f[ENGINE_LORA], SPAN("*")))
        f[ENGINE_LORA] = http_member_of(&s->lora);
    if (tenant.len > 0 || !span_eq(f[ENGINE_TENANT], SPAN("default"))) f[ENGINE_TENANT] = tenant;
    if (s->salt.is.len > 0) f[ENGINE_SALT] = http_member_of(&s->salt);
    f[ENGINE_BLOCK] = span_of(block, u64_to_dec(s->block, block));
}

void http_run_register(const struct tarn_http_request *r) {
    struct said s;
    struct registration x = {0};
    struct refusal why;
    struct http_answer a;
    struct buf was = {NULL, 0, 0}; /* what is kept moves when something is */
    char block[24];
    bool two_ranks;
    if (!may_write(r) || !said_read(r, &s)) return;
    struct span id = http_member_of(&s.instance);
    if (enroll_find(id, (uint32_t)s.rank, &x, &two_ranks)) {
        registration_write(&x, &was);
        TARN_ASSERT(registration_read(span_of(was.data, was.len), &x));
        /* Where another rank is says nothing of this one. */
        if (two_ranks) x.field[ENGINE_METRICS] = x.field[ENGINE_URL] = SPAN("");
    }
    x.id = id;
    x.rank = (uint32_t)s.rank;
    said_over(&s, block, &x);
    if (enroll(&x, &why)) {
        http_answer_begin(&a, r);
        http_map(&a, 2);
        http_name(&a, SPAN("status"));
        http_text(&a, SPAN("registered successfully"));
        http_name(&a, SPAN("instance_id"));
        http_text(&a, id);
        http_map_end(&a);
        http_answer_send(&a, 200);
    } else {
        register_refuse(r, &why);
    }
    buf_free(&was);
}

/* --- /unregister --- */

/* Not that of another tenant. */
static tarn_status unregister(struct span id, struct span tenant, uint64_t rank) {
    struct registration x;
    if (!span_is_name(id, ROUTE_NAME_MAX) || !kept_registration(id, (uint32_t)rank, &x))
        return TARN_ENOTFOUND;
    struct span its = x.field[ENGINE_TENANT];
    if (span_eq(its, SPAN("default"))) its = SPAN("");
    return span_eq(its, tenant) ? kept_unregister(id, rank) : TARN_ENOTFOUND;
}

void http_run_unregister(const struct tarn_http_request *r) {
    struct http_member instance, tenant;
    struct http_answer a;
    struct refusal why;
    char error[JSON_ERROR_SIZE];
    uint64_t rank = 0;
    struct json_field fields[] = {HTTP_NEEDED("instance_id", instance, ROUTE_URL_MAX),
                                  HTTP_MAYBE("tenant_id", tenant, ROUTE_NAME_MAX),
                                  {"dp_rank", JSON_WHOLE, &rank, ROUTE_RANKS_MAX - 1, true, false}};
    if (!may_write(r)) return;
    const char *wrong = http_body_read(r, fields, ARRAY_LEN(fields), error);
    if (wrong != NULL) {
        http_refuse(r, 400, "%s", wrong);
        return;
    }
    struct span id = http_member_of(&instance), whose = http_tenant_of(&tenant);
    struct buf key = {NULL, 0, 0};
    buf_printf(&key, "%.*s|%.*s|%u", (int)id.len, id.data, whose.len > 0 ? (int)whose.len : 7,
               whose.len > 0 ? whose.data : "default", (unsigned)rank);
    tarn_status status = unregister(id, whose, rank);
    if (status == TARN_OK) {
        http_answer_begin(&a, r);
        http_map(&a, 2);
        http_name(&a, SPAN("status"));
        http_text(&a, SPAN("unregistered successfully"));
        http_name(&a, SPAN("removed_instances"));
        http_text_list(&a, span_of(key.data, key.len));
        http_map_end(&a);
        http_answer_send(&a, 200);
        (void)kept_write();
    } else if (status == TARN_ENOTFOUND) {
        http_refuse(r, 404, "service not found: %.*s", (int)key.len, key.data);
    } else {
        enroll_refuse_kept(&why, status);
        register_refuse(r, &why);
    }
    buf_free(&key);
}
