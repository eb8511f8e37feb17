/* POST /register, /unregister, /query and /query_by_hash, with blocks that only a test can put
 * where they are. */
#include <malloc.h>

#include "../test.h"
#include "conductor/conductor.h"
#include "conductor/kept.h"
#include "fake.h"
#include "route/hash.h"

/* Single quotes stand for double ones, in both. */
static char text[8192];
static const char *post(const char *path, const char *body) {
    struct buf quoted = {NULL, 0, 0};
    buf_append_str(&quoted, body);
    for (size_t i = 0; i < quoted.len; i++)
        if (quoted.data[i] == '\'') quoted.data[i] = '"';
    const struct buf *said = fake_post(path, span_of(quoted.data, quoted.len));
    buf_free(&quoted);
    CHECK(said != NULL && said->len > 0 && said->len < sizeof(text));
    for (size_t i = 0; i < said->len; i++) text[i] = said->data[i] == '"' ? '\'' : said->data[i];
    text[said->len - (said->data[said->len - 1] == '\n')] = '\0';
    return text;
}
#define POST(path, body, answer)  CHECK_STR(post(path, body), answer)
#define WRONG(path, body, answer) POST(path, body, "400 {'error':'" answer "'}")

#define E1       "{'endpoint':'tcp://127.0.0.1:1','type':'vLLM','modelname':'m','instance_id':'e1'"
#define E1_MORE  E1 ",'block_size':16"
#define E1_THERE "200 {'status':'registered successfully','instance_id':'e1'}"

/* The first `blocks` blocks of the tokens 0, 1, 2, ... are with that engine. */
static void blocks_store(const char *id, uint32_t rank, uint32_t blocks, enum route_tier tier,
                         const char *salt, struct span extra) {
    uint32_t tokens[1024];
    uint64_t rolling[64];
    for (uint32_t i = 0; i < 1024; i++) tokens[i] = i;
    size_t n = route_hash_prompt(tokens, blocks * 16, 16, extra.data, extra.len, 0, rolling, 64);
    uint32_t worker = route_worker_find(conductor_route, span_str(id), rank);
    struct route_stored e = {
        .holder = route_worker_holder(conductor_route, worker),
        .tier = tier,
        .scope = route_hash_scope(SPAN("m"), SPAN(""), SPAN(""), span_str(salt), 16),
        .n = n,
        .rolling = rolling};
    CHECK_EQ(route_index_stored(route_index(conductor_route), &e), n);
}

/* Asks for the tokens 0, 1, 2, ... with more members. */
static const char *query(uint32_t tokens, const char *more) {
    struct buf body = {NULL, 0, 0};
    static char answer[sizeof(text)];
    buf_append_str(&body, "{'model':'m','token_ids':[");
    for (uint32_t i = 0; i < tokens; i++) buf_printf(&body, "%s%u", i > 0 ? ", " : "", i);
    buf_printf(&body, "]%s}", more);
    buf_append_char(&body, '\0');
    memcpy(answer, post("/query", body.data), sizeof(answer));
    buf_free(&body);
    return answer;
}
#define QUERY(tokens, more, answer) CHECK_STR(query(tokens, more), "200 " answer)
#define FINDS(tokens, more, part)   CHECK(strstr(query(tokens, more), part) != NULL)

TEST(registered_as_by_add) {
    fake_begin();
    POST("/register", E1_MORE ",'replay_endpoint':'tcp://127.0.0.1:2','tenant_id':'default'}",
         E1_THERE);
    HAS("conductor.list", "id e1 role both model m block 16 rank 0 url e1 state up");
    HAS("conductor.info e1", "endpoint tcp://127.0.0.1:1 replay tcp://127.0.0.1:2");
    /* By whichever way, the same again renews it; what is not said stays. */
    POST("/register", E1_MORE ",'lora_name':null,'cache_group':0,'hash_profile':{'x':[1]}}",
         E1_THERE);
    HAS("conductor.info e1", "replay tcp://127.0.0.1:2");
    SAYS("conductor.add e1 e1 MODEL m EVENTS tcp://127.0.0.1:1", "OK");
    CHECK_EQ(conductor_figures.conductor_engines_renewed, 2);
    SAYS("conductor.add e2 http://e2 MODEL m TENANT default LORA * ROLE PREFILL HOST h BYTES 7",
         "OK");
    POST("/register",
         "{'endpoint':'tcp://127.0.0.1:3','type':'sglang','modelname':'m','instance_id':'e2',"
         "'block_size':16,'dp_rank':0,'lora_name':'l'}",
         "200 {'status':'registered successfully','instance_id':'e2'}");
    HAS("conductor.info e2", "role prefill model m lora * tenant  salt  host h");
    HAS("conductor.info e2", "url http://e2");
    HAS("conductor.info e2", "endpoint tcp://127.0.0.1:3 replay  state");
    /* Another rank is of the same engine. */
    POST("/register", E1_MORE ",'dp_rank':2,'endpoint':'tcp://127.0.0.1:5'}",
         "400 {'error':'endpoint: it is there twice'}");
    POST("/register",
         "{'endpoint':'tcp://127.0.0.1:5','type':'vLLM','modelname':'m','instance_id':'e1',"
         "'block_size':16,'dp_rank':2,'url':'http://e1:2'}",
         E1_THERE);
    HAS("conductor.list", "id e1 role both model m block 16 rank 2 url http://e1:2 state up");
    /* ... with a url of its own. */
    POST("/register",
         "{'endpoint':'tcp://127.0.0.1:6','type':'vLLM','modelname':'m','instance_id':'e2',"
         "'block_size':16,'dp_rank':1}",
         "200 {'status':'registered successfully','instance_id':'e2'}");
    HAS("conductor.info e2", "rank 1 url e2");
    SAYS("conductor.add e3 http://e3 MODEL m LORA l EVENTS tcp://127.0.0.1:7", "OK");
    POST("/register",
         "{'endpoint':'tcp://127.0.0.1:7','type':'vLLM','modelname':'m','instance_id':'e3',"
         "'block_size':16}",
         "200 {'status':'registered successfully','instance_id':'e3'}");
    HAS("conductor.info e3", "model m lora l tenant");
    /* It is kept, and there again. */
    fake_unload();
    fake_begin();
    HAS("conductor.info e1", "rank 2 url http://e1:2");
    HAS("conductor.info e2", "endpoint tcp://127.0.0.1:3");
    fake_end();
}

TEST(unregistered) {
    fake_begin();
    POST("/register", E1_MORE ",'tenant_id':'t'}", E1_THERE);
    POST("/unregister", "{'type':'vLLM','modelname':'m','instance_id':'e1','dp_rank':0}",
         "404 {'error':'service not found: e1|default|0'}");
    POST("/unregister", "{'instance_id':'e1','tenant_id':'t','dp_rank':1}",
         "404 {'error':'service not found: e1|t|1'}");
    POST("/unregister", "{'instance_id':'e 1\\\\','tenant_id':'t\\u000a'}",
         "404 {'error':'service not found: e 1\\\\|t\\u000a|0'}");
    POST("/unregister", "{'instance_id':'e1','tenant_id':'t','block_size':16,'dp_rank':0}",
         "200 {'status':'unregistered successfully','removed_instances':['e1|t|0']}");
    SAYS("conductor.list", "*0");
    SAYS("conductor.add e1 http://e1 MODEL m TENANT default RANK 63", "OK");
    POST("/unregister", "{'instance_id':'e1','dp_rank':63}",
         "200 {'status':'unregistered successfully','removed_instances':['e1|default|63']}");
    WRONG("/unregister", "{}", "instance_id: it is missing");
    WRONG("/unregister", "{'instance_id':'e1','dp_rank':64}", "dp_rank: the number is too large");
    fake_end();
}

TEST(who_registers_wrongly_is_told_what) {
    fake_begin();
    WRONG("/register", "", "it is no object");
    WRONG("/register", "[]", "it is no object");
    WRONG("/register", "{'endpoint'", "a colon is missing");
    WRONG("/register", "{}", "endpoint: it is missing");
    WRONG("/register", E1 "}", "block_size: it is missing");
    WRONG("/register", E1 ",'block_size':0}", "block_size: must be 1 or more");
    WRONG("/register", E1 ",'block_size':1048577}", "block_size: the number is too large");
    WRONG("/register", E1 ",'block_size':'16'}", "block_size: a number from 0 on is missing");
    WRONG("/register", E1 ",'block_size':16.5}", "block_size: a number with a fraction");
    WRONG("/register", E1_MORE ",'dp_rank':64}", "dp_rank: the number is too large");
    WRONG("/register", E1_MORE ",'dp_rank':-1}", "dp_rank: a number from 0 on is missing");
    WRONG("/register", E1_MORE ",'tenant_id':7}", "tenant_id: a string is missing");
    WRONG("/register", E1_MORE ",'url':'\\u0000'}", "url: no character");
    WRONG("/register", E1_MORE ",'tenant_id':'\xff'}", "tenant_id: no character");
    WRONG("/register",
          "{'endpoint':'tcp://*:1','type':'vLLM','modelname':'m','instance_id':'e','block_size':1}",
          "endpoint: EVENTS must be tcp://HOST:PORT or ipc://PATH");
    WRONG("/register", E1_MORE ",'replay_endpoint':'x'}",
          "replay_endpoint: REPLAY must be tcp://HOST:PORT or ipc://PATH");
    WRONG(
        "/register",
        "{'endpoint':'tcp://a:1','type':'vLLM','modelname':'m','instance_id':'a:1','block_size':1}",
        "instance_id: must be 1 to 128 of A-Z a-z 0-9 . _ -");
    WRONG("/register",
          "{'endpoint':'tcp://a:1','type':'vLLM','modelname':'','instance_id':'a','block_size':1}",
          "modelname: it is empty");
    WRONG("/register",
          "{'endpoint':'','type':'vLLM','modelname':'m','instance_id':'a','block_size':1}",
          "endpoint: it is empty");
    WRONG("/register",
          "{'endpoint':'tcp://a:1','type':'x','modelname':'m','instance_id':'a','block_size':1}",
          "type: must be vLLM or SGLang");
    CHECK(strstr(post("/register", "{'endpoint':'tcp://a:1','type':'Mooncake','modelname':'m',"
                                   "'instance_id':'a','block_size':1}"),
                 "400 {'error':'type: the events of a Mooncake pool are not followed") != NULL);
    CHECK_EQ(conductor_figures.conductor_requests_bad, 21);
    SAYS("conductor.list", "*0");
    /* As another: the member is named. */
    POST("/register", E1_MORE "}", E1_THERE);
    WRONG("/register", E1 ",'block_size':32}",
          "block_size: engine 'e1' is registered with BLOCK 16, not 32: CONDUCTOR.REMOVE it before "
          "it comes back as another");
    WRONG("/register", E1_MORE ",'tenant_id':'t'}",
          "tenant_id: engine 'e1' is registered with TENANT nothing, not t: CONDUCTOR.REMOVE it "
          "before it comes back as another");
    CHECK_EQ(conductor_figures.conductor_engines_differing, 2);
    /* Nothing can be kept, or it is for another server. */
    fake.refuse = TARN_ELIMIT;
    POST("/unregister", "{'instance_id':'e1'}",
         "503 {'error':'there is no room to keep it: module-state-max'}");
    fake.refuse = TARN_ELATER;
    CHECK(strncmp(post("/unregister", "{'instance_id':'e1'}"), "503 ", 4) == 0);
    fake.leads = false;
    CHECK(strncmp(post("/register", E1_MORE "}"), "503 {'error':'READONLY this server is a replica",
                  47) == 0);
    CHECK(strncmp(post("/unregister", "{}"), "503 {'error':'READONLY this server is a replica",
                  47) == 0);
    QUERY(
        0, "",
        "{'default':{'e1':{'longest_matched':0,'GPU':0,'DP':{'0':0},'CPU':0,'DISK':0,'POOL':0}},"
        "'instances':{'e1':{'longest_matched':0,'gpu':0,'dp':{'0':0},'cpu':0,'disk':0,'pool':0}}}");
    fake.leads = true;
    fake.refuse = TARN_OK;
    fake_end();
}

/* What CONDUCTOR.ADD takes may be no UTF-8; what is answered is. */
TEST(whatever_a_tenant_is_called_answers_can_be_read) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 TENANT \xff MODEL m BLOCK 16", "OK");
    WRONG("/register", E1_MORE ",'url':'http://e1'}",
          "tenant_id: engine 'e1' is registered with TENANT \\ufffd, not nothing: "
          "CONDUCTOR.REMOVE it before it comes back as another");
    fake_end();
}

TEST(hits_by_tier_and_rank) {
    fake_begin();
    QUERY(100, "", "{'default':{},'instances':{}}");
    POST("/register", E1_MORE "}", E1_THERE);
    SAYS("conductor.add e2 http://e2 MODEL m RANK 0", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m RANK 10", "OK");
    blocks_store("e1", 0, 2, ROUTE_TIER_DEVICE, "", SPAN(""));
    blocks_store("e1", 0, 5, ROUTE_TIER_HOST, "", SPAN(""));
    blocks_store("e1", 0, 6, ROUTE_TIER_DISK, "", SPAN(""));
    blocks_store("e2", 0, 1, ROUTE_TIER_DEVICE, "", SPAN(""));
    blocks_store("e2", 10, 3, ROUTE_TIER_DEVICE, "", SPAN(""));
    /* Whole blocks: 95 tokens are five. */
    QUERY(
        95, ",'block_size':16,'lora_name':'','cache_salt':null",
        "{'default':{'e1':{'longest_matched':80,'GPU':32,'DP':{'0':80},'CPU':48,'DISK':0,'POOL':0},"
        "'e2':{'longest_matched':48,'GPU':48,'DP':{'0':16,'10':48},'CPU':0,'DISK':0,'POOL':0}},"
        "'instances':{'e1':{'longest_matched':80,'gpu':32,'dp':{'0':32},'cpu':80,'disk':80,'pool':"
        "0},"
        "'e2':{'longest_matched':48,'gpu':48,'dp':{'0':16,'10':48},'cpu':48,'disk':48,'pool':0}}}");
    QUERY(100, ",'instance_id':'e1'",
          "{'default':{'e1':{'longest_matched':96,'GPU':32,'DP':{'0':96},'CPU':48,'DISK':16,'POOL':"
          "0}},"
          "'instances':{'e1':{'longest_matched':96,'gpu':32,'dp':{'0':32},'cpu':80,'disk':96,'pool'"
          ":0}}}");
    QUERY(100, ",'instance_id':'nobody'", "{'default':{},'instances':{}}");
    QUERY(100, ",'block_size':32", "{'default':{},'instances':{}}");
    CHECK_EQ(conductor_figures.conductor_prompts_misfitting, 1);
    QUERY(100, ",'lora_name':'l'", "{'default':{},'instances':{}}");
    /* As ROUTE has it, who gets nothing new is not there. */
    SAYS("conductor.drain e2", "OK");
    FINDS(20, "", "'instances':{'e1':{'longest_matched':16,'gpu':16,'dp':{'0':16},'cpu':16,");
    CHECK(strstr(query(20, ""), "e2") == NULL);
    WRONG("/query", "{'token_ids':[]}", "model: it is missing");
    WRONG("/query", "{'model':'m'}", "token_ids: it is missing");
    WRONG("/query", "{'model':'m','token_ids':null}", "token_ids: no array");
    WRONG("/query", "{'model':'m','token_ids':[1.5]}", "token_ids: a number with a fraction");
    WRONG("/query", "{'model':'m','token_ids':[4294967296]}", "token_ids: the number is too large");
    WRONG("/query", "{'model':'m','token_ids':[0,-1]}", "token_ids: a number from 0 on is missing");
    WRONG("/query", "{'model':'m','token_ids':[1,2", "token_ids: the array does not end");
    fake_end();
}

static size_t heap_used(void) {
    struct mallinfo2 m = mallinfo2(); /* what is mapped is told apart; zeroes with ASan */
    return m.uordblks + m.hblkhd;
}

/* One request's many numbers are not kept for the next, be they right or wrong. */
TEST(much_memory_is_given_back) {
    struct buf body = {NULL, 0, 0};
    fake_begin();
    buf_append_str(&body, "{'token_ids':[0");
    for (uint32_t i = 1; i < 150000; i++) buf_printf(&body, ",%u", i);
    buf_append_str(&body, "],'model':");
    size_t len = body.len;
    for (int right = 0; right < 2; right++) {
        body.len = len;
        buf_append_str(&body, right ? "'m'}" : "7}");
        buf_append_char(&body, '\0');
        size_t used = heap_used();
        CHECK(strncmp(post("/query", body.data), right ? "200" : "400", 3) == 0);
        CHECK(heap_used() < used + 65536 * sizeof(uint64_t));
    }
    buf_free(&body);
    fake_end();
}

TEST(tenants_see_their_engines_and_everybodys) {
    fake_begin();
    POST("/register", E1_MORE ",'tenant_id':'a'}", E1_THERE);
    SAYS("conductor.add e2 http://e2 MODEL m", "OK");
    SAYS("conductor.add e3 http://e3 MODEL m TENANT b", "OK");
    SAYS("conductor.add e4 http://e4 MODEL m ROLE DECODE", "OK");
    static const struct {
        const char *more, *ids[2], *key;
    } cases[] = {
        {"", {"e2", NULL}, "200 {'default':{'e2'"},
        {",'tenant_id':'default'", {"e2", NULL}, "200 {'default':{'e2'"},
        {",'tenant_id':'a'", {"e1", "e2"}, "200 {'a':{'e1'"},
        {",'tenant_id':'c\\u0022\\n'", {"e2", NULL}, "200 {'c\\'\\u000a':{'e2'"},
        {",'tenant_id':'instances'",
         {"e2", NULL},
         "200 {'instances':{'e2':{'longest_matched':0,'g"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *said = query(16, cases[i].more);
        CHECK(strncmp(said, cases[i].key, strlen(cases[i].key)) == 0);
        for (unsigned e = 1; e <= 4; e++) {
            char id[8];
            snprintf(id, sizeof(id), "'e%u'", e);
            bool wanted = false;
            for (size_t k = 0; k < 2 && cases[i].ids[k] != NULL; k++)
                wanted |= strncmp(id + 1, cases[i].ids[k], 2) == 0;
            CHECK_EQ(strstr(said, id) != NULL, wanted);
        }
    }
    fake_end();
}

/* SGLang's is a salt of all blocks, vLLM's an extra key of the first. */
TEST(both_kinds_of_cache_salt) {
    static const char longer[] = "a-salt-that-is-longer-than-31-bytes";
    char extra[64] = {0, 0, 0, 0, 3, 0, 0, 0, (char)0x91, (char)0xa1, 's'}, more[80];
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m", "OK");
    blocks_store("e1", 0, 3, ROUTE_TIER_DEVICE, "s", SPAN(""));
    blocks_store("e2", 0, 2, ROUTE_TIER_DEVICE, "", span_of(extra, 11));
    FINDS(64, ",'cache_salt':'s'", "{'e1':{'longest_matched':48,'gpu'");
    FINDS(64, ",'cache_salt':'s'", "'e2':{'longest_matched':32,'gpu'");
    FINDS(64, "", "'e2':{'longest_matched':0,'gpu'");
    FINDS(64, ",'cache_salt':'t'", "'e2':{'longest_matched':0,'gpu'");
    size_t len = strlen(longer);
    extra[4] = (char)(3 + len);
    extra[9] = (char)0xd9;
    extra[10] = (char)len;
    memcpy(extra + 11, longer, len);
    blocks_store("e1", 0, 4, ROUTE_TIER_DEVICE, "", span_of(extra, 11 + len));
    snprintf(more, sizeof(more), ",'cache_salt':'%s'", longer);
    FINDS(64, more, "{'e1':{'longest_matched':64,'gpu'");
    fake_end();
}

/* Told, and not added: all engines are as near to it. */
TEST(what_the_pool_has) {
    fake_begin();
    fake.pool_name = "m@";
    fake.pool_blocks = 5;
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    SAYS("conductor.add e2 http://e2 MODEL m", "OK");
    SAYS("conductor.keys e2 HASH TARN UNIT 16 ALIGN 16 KVGROUPS 1 m@ FULL 16 16 0 0", "OK");
    blocks_store("e1", 0, 2, ROUTE_TIER_DEVICE, "", SPAN(""));
    QUERY(
        100, "",
        "{'default':{'e1':{'longest_matched':32,'GPU':32,'DP':{'0':32},'CPU':0,'DISK':0,'POOL':0},"
        "'e2':{'longest_matched':0,'GPU':0,'DP':{'0':0},'CPU':0,'DISK':0,'POOL':80}},"
        "'instances':{"
        "'e1':{'longest_matched':32,'gpu':32,'dp':{'0':32},'cpu':32,'disk':32,'pool':0},"
        "'e2':{'longest_matched':0,'gpu':0,'dp':{'0':0},'cpu':0,'disk':0,'pool':80}}}");
    fake.pool_name = NULL;
    fake_end();
}

TEST(by_hashes) {
    uint32_t tokens[64];
    uint64_t rolling[4];
    char body[512];
    fake_begin();
    SAYS("conductor.add e1 http://e1 MODEL m", "OK");
    blocks_store("e1", 0, 3, ROUTE_TIER_HOST, "", SPAN(""));
    for (uint32_t i = 0; i < 64; i++) tokens[i] = i;
    route_hash_prompt(tokens, 64, 16, NULL, 0, 0, rolling, 4);
    static const char *const names[] = {"seq_hashes", "block_hash"};
    for (size_t i = 0; i < 4; i++) {
        /* With a sign or without. */
        const char *format = i < 2 ? "{'model':'m','block_size':16,'%s':[%lld,%lld,%lld,%lld]}"
                                   : "{'model':'m','%s':[%llu,%llu,%llu,%llu]}";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(body, sizeof(body), format, names[i % 2], rolling[0], rolling[1], rolling[2],
                 rolling[3]);
#pragma GCC diagnostic pop
        CHECK(strstr(post("/query_by_hash", body),
                     "{'default':{'e1':{'longest_matched':48,'GPU':0,'DP':{'0':48},'CPU':48,") !=
              NULL);
    }
    WRONG("/query_by_hash", "{'model':'m'}", "seq_hashes: it is missing");
    WRONG("/query_by_hash", "{'model':'m','seq_hashes':[1],'block_hash':[1]}",
          "seq_hashes: block_hash is the same, and one of them is enough");
    WRONG("/query_by_hash", "{'model':'m','seq_hashes':[18446744073709551616]}",
          "seq_hashes: a number from 0 on is missing");
    SAYS("conductor.add e2 http://e2 MODEL m BLOCK 32", "OK");
    WRONG("/query_by_hash", "{'model':'m','seq_hashes':[1]}",
          "block_size: it is missing, and engines of this model have several");
    fake_end();
}

/* More than may be, in both formats. */
TEST(numbers_have_a_bound) {
    struct buf body = {NULL, 0, 0};
    fake_begin();
    buf_append_str(&body, "{\"model\":\"m\",\"token_ids\":[1");
    for (size_t i = 0; i < 1u << 20; i++) buf_append(&body, ",1", 2);
    buf_append_str(&body, "]}");
    const struct buf *said = fake_post("/query", span_of(body.data, body.len));
    CHECK(strncmp(said->data, "400 {\"error\":\"token_ids: too many numbers\"}", 43) == 0);
    buf_free(&body);
    fake_end();
}

/* --- msgpack --- */

static void packed(const char *path, struct span body, const char *answer, size_t len) {
    fake.content_type = "application/msgpack";
    const struct buf *said = fake_post(path, body);
    fake.content_type = NULL;
    CHECK_EQ(said->len, len);
    CHECK(memcmp(said->data, answer, len) == 0);
}
#define PACKED(path, body, answer) packed(path, SPAN(body), answer, sizeof(answer) - 1)
#define M_ERROR(size)                                                                              \
    "400 \xdf\0\0\0\1\xdb\0\0\0\5"                                                                 \
    "error\xdb\0\0\0" size

/* Engine e1 of model m, with members that nobody knows. */
#define M_REGISTER(endpoint)                                                                       \
    "\x87\xa8"                                                                                     \
    "endpoint" endpoint "\xa4"                                                                     \
    "type\xa4"                                                                                     \
    "vLLM\xa9"                                                                                     \
    "modelname\xa1"                                                                                \
    "m\xab"                                                                                        \
    "instance_id\xa2"                                                                              \
    "e1\xaa"                                                                                       \
    "block_size\x10\xa7"                                                                           \
    "dp_rank\xcd\0\0\xa1"                                                                          \
    "x\x81\1\x90"
/* What follows is the value of token_ids. */
#define M_QUERY                                                                                    \
    "\x82\xa5"                                                                                     \
    "model\xa1"                                                                                    \
    "m\xa9"                                                                                        \
    "token_ids"
#define M_0  "\xcf\0\0\0\0\0\0\0\0"
#define M_16 "\xcf\0\0\0\0\0\0\0\x10"
/* e1 has one block, in device memory. */
#define M_HIT                                                                                      \
    "200 \xdf\0\0\0\2\xdb\0\0\0\7"                                                                 \
    "default\xdf\0\0\0\1\xdb\0\0\0\2"                                                              \
    "e1\xdf\0\0\0\6\xdb\0\0\0\x0f"                                                                 \
    "longest_matched" M_16 "\xdb\0\0\0\3"                                                          \
    "GPU" M_16 "\xdb\0\0\0\2"                                                                      \
    "DP\xdf\0\0\0\1\xdb\0\0\0\1"                                                                   \
    "0" M_16 "\xdb\0\0\0\3"                                                                        \
    "CPU" M_0 "\xdb\0\0\0\4"                                                                       \
    "DISK" M_0 "\xdb\0\0\0\4"                                                                      \
    "POOL" M_0 "\xdb\0\0\0\x09"                                                                    \
    "instances\xdf\0\0\0\1\xdb\0\0\0\2"                                                            \
    "e1\xdf\0\0\0\6\xdb\0\0\0\x0f"                                                                 \
    "longest_matched" M_16 "\xdb\0\0\0\3"                                                          \
    "gpu" M_16 "\xdb\0\0\0\2"                                                                      \
    "dp\xdf\0\0\0\1\xdb\0\0\0\1"                                                                   \
    "0" M_16 "\xdb\0\0\0\3"                                                                        \
    "cpu" M_16 "\xdb\0\0\0\4"                                                                      \
    "disk" M_16 "\xdb\0\0\0\4"                                                                     \
    "pool" M_0

TEST(msgpack_is_answered_in_msgpack) {
    fake_begin();
    PACKED("/register", M_REGISTER("\xaftcp://127.0.0.1"),
           M_ERROR("\x36") "endpoint: EVENTS must be tcp://HOST:PORT or ipc://PATH");
    PACKED("/register", M_REGISTER("\xb1tcp://127.0.0.1:1"),
           "200 \xdf\0\0\0\2\xdb\0\0\0\6"
           "status\xdb\0\0\0\x17"
           "registered successfully\xdb\0\0\0\x0b"
           "instance_id\xdb\0\0\0\2"
           "e1");
    HAS("conductor.info e1", "endpoint tcp://127.0.0.1:1");
    blocks_store("e1", 0, 1, ROUTE_TIER_DEVICE, "", SPAN(""));
    PACKED("/query", M_QUERY "\xdc\0\x10\0\1\2\3\4\5\6\7\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", M_HIT);
    PACKED("/query",
           "\x83\xa5"
           "model\xa1"
           "m\xa9"
           "tenant_id\xc0\xa9"
           "token_ids\xc4\x40"
           "\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6\0\0\0\7\0\0\0"
           "\x08\0\0\0\x09\0\0\0\x0a\0\0\0\x0b\0\0\0\x0c\0\0\0\x0d\0\0\0\x0e\0\0\0\x0f\0\0\0",
           M_HIT);
    fake_end();
}

/* A string is UTF-8 for who reads it. */
TEST(msgpack_that_is_no_text_is_bytes) {
    fake_begin();
    SAYS("conductor.add e1 http://e1 TENANT \xff MODEL m BLOCK 16", "OK");
    PACKED(
        "/register", M_REGISTER("\xb1tcp://127.0.0.1:1"),
        "400 \xdf\0\0\0\1\xdb\0\0\0\5"
        "error\xc6\0\0\0\x74"
        "tenant_id: engine 'e1' is registered with TENANT \xff, not nothing: CONDUCTOR.REMOVE it "
        "before it comes back as another");
    fake_end();
}

TEST(msgpack_of_wrong_numbers) {
    fake_begin();
    PACKED("/query", M_QUERY "\xc4\3abc",
           M_ERROR("\x29") "token_ids: bytes must be 4 of each number");
    PACKED("/query", M_QUERY "\x92\1\241a", M_ERROR("\x24") "token_ids: a whole number is missing");
    PACKED("/query", M_QUERY "\x92\0\xff",
           M_ERROR("\x28") "token_ids: a number from 0 on is missing");
    PACKED("/query", M_QUERY "\x91\xcf\0\0\0\1\0\0\0\0",
           M_ERROR("\x22") "token_ids: the number is too large");
    PACKED("/query", M_QUERY "\xdd\xff\xff\xff\xff\1",
           M_ERROR("\x1b") "token_ids: it is no msgpack");
    PACKED("/query_by_hash",
           "\x82\xa5"
           "model\xa1"
           "m\xaa"
           "seq_hashes\xc4\0",
           M_ERROR("\x14") "seq_hashes: no array");
    fake_end();
}

TEST(msgpack_of_wrong_members) {
    fake_begin();
    PACKED("/query",
           "\x81\xa9"
           "token_ids\x90",
           M_ERROR("\x14") "model: it is missing");
    PACKED("/query",
           "\x82\xa5"
           "model\xa1"
           "m\xa5"
           "model\xa1"
           "m",
           M_ERROR("\x18") "model: it is there twice");
    PACKED("/query",
           "\x81\xa5"
           "model",
           M_ERROR("\x17") "model: it is no msgpack");
    PACKED("/query", "\x81\1\xc1", M_ERROR("\x1e") "it is no msgpack, or cut short");
    PACKED("/query", "{}", M_ERROR("\x17") "it is no map of msgpack");
    PACKED("/query",
           "\x81\xa5"
           "model\xa2"
           "\xc0\x80",
           M_ERROR("\x13") "model: no character");
    fake_end();
}

TEST_MAIN()
