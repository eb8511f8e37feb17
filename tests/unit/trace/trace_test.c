/* The readers of traces: what they take, what they refuse and with which words. */
#include "trace/trace.h"

#include "base/assert.h"

#include "../test.h"

static const char *why;

static tarn_status parse_as(struct trace *t, enum trace_format format, const char *text) {
    const struct trace_options o = {.format = format, .seed = 7};
    why = "";
    return trace_parse(t, span_str(text), "t", &o, &why);
}

static void refused(enum trace_format format, const char *text, const char *words) {
    struct trace t = {0};
    if (parse_as(&t, format, text) == TARN_OK) printf("# taken: %s\n", text);
    CHECK_STR(why, words);
    trace_free(&t);
}

static tarn_status parse_apart(struct trace *t, const char *line, size_t len) {
    const struct trace_options o = {.format = TRACE_MOONCAKE, .lengths_apart = true};
    return trace_parse(t, span_of(line, len), "t", &o, &why);
}

static tarn_status add(struct trace *t, const char *line) {
    return parse_apart(t, line, strlen(line));
}

TEST(a_line_of_mooncakes_trace) {
    struct trace t = {0};
    CHECK_EQ(parse_as(&t, TRACE_AUTO,
                      "{\"timestamp\": 27482, \"input_length\": 1400, \"output_length\": 52, "
                      "\"hash_ids\": [46, 47, 2353]}\n\n"
                      "{\"hash_ids\":[1],\"timestamp\":1.5,\"input_length\":1,\"output_length\":0,"
                      "\"x\":{\"a\":[1,{\"b\":null}],\"c\":\"\\u0041\\\"\"}}"),
             TARN_OK);
    CHECK_EQ(t.format, TRACE_MOONCAKE);
    CHECK_EQ(t.block, 512);
    CHECK_EQ(t.n, 2);
    CHECK_EQ(t.requests[0].timestamp_ms, 27482);
    CHECK_EQ(t.requests[0].input, 1400);
    CHECK_EQ(t.requests[0].output, 52);
    CHECK_EQ(t.requests[0].n, 3);
    CHECK_EQ(t.ids[2], 2353);
    CHECK_EQ(t.requests[1].n, 1);
    CHECK_EQ(t.longest, 3);
    CHECK_EQ(t.clipped, 0);
    trace_sort(&t);
    CHECK_EQ(t.requests[0].timestamp_ms, 1);
    CHECK_EQ(trace_number(&t), 4);
    CHECK_EQ(t.ids[t.requests[0].first], 0);
    trace_free(&t);
}

TEST(mooncakes_lines_may_tell_sessions) {
    struct trace t = {0}, again = {0};
    struct buf text = {0};
    CHECK_EQ(parse_as(&t, TRACE_AUTO,
                      "{\"timestamp\":1,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1],"
                      "\"session\":7}\n"
                      "{\"timestamp\":2,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1]}\n"
                      "{\"timestamp\":3,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1],"
                      "\"session\":4294967294}\n"),
             TARN_OK);
    CHECK(t.requests[0].session == 7 && t.requests[1].session == TRACE_SESSION_NONE);
    CHECK_EQ(t.requests[2].session, TRACE_SESSION_NONE - 1);
    trace_write(&t, 0, t.n, &text);
    buf_append_char(&text, '\0');
    CHECK_EQ(parse_as(&again, TRACE_AUTO, text.data), TARN_OK);
    for (size_t i = 0; i < t.n; i++) CHECK_EQ(again.requests[i].session, t.requests[i].session);
    CHECK_EQ(parse_as(&again, TRACE_AUTO,
                      "{\"timestamp\":1,\"input_length\":9,\"output_length\":1,\"hash_ids\":[1],"
                      "\"session\":4294967295}"),
             TARN_EINVAL);
    CHECK(strstr(why, "session") != NULL);
    buf_free(&text);
    trace_free(&t);
    trace_free(&again);
}

TEST(lengths_may_be_missing_where_nobody_needs_them) {
    struct trace t = {0};
    CHECK_EQ(add(&t, "{\"timestamp\": 1, \"hash_ids\": [5, 6]}"), TARN_OK);
    CHECK_EQ(t.requests[0].n, 2);
    trace_free(&t);
    refused(TRACE_MOONCAKE, "{\"timestamp\":1,\"hash_ids\":[5]}",
            "t:1: input_length: it is missing");
}

TEST(ids_beyond_the_prompt_are_dropped_and_counted) {
    struct trace t = {0};
    CHECK_EQ(parse_as(&t, TRACE_MOONCAKE,
                      "{\"timestamp\":0,\"input_length\":513,\"output_length\":1,"
                      "\"hash_ids\":[1,2,3,4]}"),
             TARN_OK);
    CHECK_EQ(t.requests[0].n, 2);
    CHECK_EQ(t.clipped, 2);
    CHECK_EQ(t.n_ids, 2);
    trace_free(&t);
}

TEST(bad_lines_are_refused_and_leave_no_trace) {
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"timestamp\":1}",
        "{\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1]",
        "{\"timestamp\":1,\"hash_ids\":[1]} x",
        "{\"timestamp\":-1,\"hash_ids\":[1]}",
        "{\"timestamp\":01,\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1,]}",
        "{\"timestamp\":1,\"hash_ids\":[\"1\"]}",
        "{\"timestamp\":1,\"hash_ids\":1}",
        "{\"timestamp\":1,\"hash_ids\":[18446744073709551616]}",
        "{\"timestamp\":1,\"hash_ids\":[1],}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":tru}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"\\q\"}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"a}",
        "{\"timestamp\":1,\"timestamp\":1,\"hash_ids\":[1]}",
        "{\"timestamp\":1.5e3,\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"\\u12\"}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":\"\\u12g4\"}",
        "{timestamp:1,\"hash_ids\":[1]}",
        "{\"timestamp\":1,\"hash_ids\":[1],\"x\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}",
    };
    struct trace t = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (add(&t, bad[i]) == TARN_OK) printf("# %s was taken\n", bad[i]);
        CHECK_EQ(t.n, 0);
        CHECK_EQ(t.n_ids, 0);
    }
    trace_free(&t);
}

TEST(a_zero_byte_is_no_text) {
    static const char text[] = "{\"timestamp\":1,\"hash_ids\":[1]}\0 left out\n"
                               "{\"timestamp\":2,\"hash_ids\":[2]}\n";
    struct trace t = {0};
    CHECK_EQ(parse_apart(&t, text, sizeof(text) - 1), TARN_ELIMIT);
    CHECK_EQ(parse_apart(&t, "{}\0", 3), TARN_ELIMIT);
    CHECK_EQ(t.n, 0);
    trace_free(&t);
}

TEST(every_cut_of_a_line_is_an_error) {
    static const char line[] =
        "{\"timestamp\": 1, \"x\": [1.5e-3, \"a\\n\", {}], \"hash_ids\": [1, 2]}";
    struct trace t = {0};
    for (size_t n = 0; n + 1 < sizeof(line); n++) CHECK(parse_apart(&t, line, n) != TARN_OK);
    CHECK_EQ(parse_apart(&t, line, sizeof(line) - 1), TARN_OK);
    trace_free(&t);
}

TEST(an_error_names_file_line_and_field) {
    refused(TRACE_AUTO,
            "\n{\"timestamp\":1,\"input_length\":-3,\"output_length\":1,\"hash_ids\":[]}",
            "t:2: input_length: a number from 0 on is missing");
    refused(TRACE_AUTO, "{\"timestamp\":1,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}",
            "t:1: input_length: a prompt has at least one token");
    refused(TRACE_AUTO,
            "{\"timestamp\":1,\"input_length\":99999999999,\"output_length\":1,\"hash_ids\":[]}",
            "t:1: input_length: the number is too large");
    refused(TRACE_AUTO, "hello\n",
            "t:1: neither JSON nor the first line of a CSV that is known (burstgpt, azure)");
    refused(TRACE_AUTO, "\n\n", "t: no requests");
    refused(TRACE_BAILIAN,
            "{\"timestamp\":1,\"input_length\":1,\"output_length\":1,\"hash_ids\":[]}",
            "t:1: chat_id: it is missing");
    refused(TRACE_BAILIAN,
            "{\"chat_id\":- 1,\"timestamp\":1,\"input_length\":1,\"output_length\":1,"
            "\"hash_ids\":[]}",
            "t:1: chat_id: a number from 0 on is missing");
    refused(TRACE_AZURE, "TIMESTAMP,ContextTokens\n",
            "t:1: GeneratedTokens: there is no such column");
    refused(TRACE_AUTO, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1\n",
            "t:2: the line has 2 columns, the first one 3");
    refused(TRACE_AUTO, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03.97,1,1\n",
            "t:2: TIMESTAMP: no date and time");
    refused(TRACE_AUTO, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,x,1\n",
            "t:2: ContextTokens: no number of tokens");
    refused(TRACE_AUTO,
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\nx,a,1,1,2,b\n",
            "t:2: Timestamp: no time in seconds");
    struct trace t = {0};
    const struct trace_options o = {0};
    CHECK_EQ(trace_load(&t, "/nowhere/at all", &o, &why), TARN_EIO);
    CHECK_STR(why, "/nowhere/at all: No such file or directory");
}

TEST(bailian_has_seconds_blocks_of_16_and_conversations) {
    struct trace t = {0};
    CHECK_EQ(parse_as(&t, TRACE_AUTO,
                      "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, "
                      "\"input_length\": 20, \"output_length\": 132, \"type\": \"text\", "
                      "\"turn\": 1, \"hash_ids\": [9, 4]}\n"
                      "{\"chat_id\": 160, \"parent_chat_id\": -1, \"timestamp\": 61.5, "
                      "\"input_length\": 20, \"output_length\": 132, \"hash_ids\": [9, 5]}\n"
                      "{\"chat_id\": 161, \"parent_chat_id\": 159, \"timestamp\": 62, "
                      "\"input_length\": 40, \"output_length\": 1, \"hash_ids\": [9, 4, 7]}\n"),
             TARN_OK);
    CHECK_EQ(t.format, TRACE_BAILIAN);
    CHECK_EQ(t.block, 16);
    CHECK_EQ(t.requests[0].timestamp_ms, 61114);
    CHECK_EQ(t.requests[1].timestamp_ms, 61500);
    CHECK_EQ(t.requests[2].timestamp_ms, 62000);
    CHECK_EQ(t.requests[0].session, t.requests[2].session);
    CHECK(t.requests[0].session != t.requests[1].session);
    trace_free(&t);
}

TEST(azure_has_dates_and_gets_prefixes_by_seed) {
    struct buf text = {0};
    buf_append_str(&text, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n");
    buf_append_str(&text, "2024-02-29 23:59:59.5000000,4808,10\r\n");
    for (int i = 0; i < 500; i++)
        buf_printf(&text, "2024-03-01T00:00:%02d.25+00:00,%d,100\n", i % 60, 1000 + 37 * i);
    struct trace a = {0}, b = {0};
    const struct trace_options o = {.seed = 1, .block = 128}, p = {.seed = 2, .block = 128};
    struct span s = span_of(text.data, text.len);
    CHECK_EQ(trace_parse(&a, s, "t", &o, &why), TARN_OK);
    CHECK_EQ(a.format, TRACE_AZURE);
    CHECK_EQ(a.n, 501);
    CHECK_EQ(a.requests[0].timestamp_ms, 0);
    CHECK_EQ(a.requests[1].timestamp_ms, 750);
    CHECK_EQ(a.requests[1].n, 8);
    uint64_t shared = a.n_ids - trace_number(&a);
    CHECK(shared > a.n_ids / 10 && shared < a.n_ids * 9 / 10);
    CHECK_EQ(trace_parse(&b, s, "t", &o, &why), TARN_OK);
    trace_number(&b);
    CHECK(memcmp(a.ids, b.ids, a.n_ids * sizeof(*a.ids)) == 0);
    trace_free(&b);
    CHECK_EQ(trace_parse(&b, s, "t", &p, &why), TARN_OK);
    CHECK_EQ(b.n_ids, a.n_ids);
    trace_number(&b);
    CHECK(memcmp(a.ids, b.ids, a.n_ids * sizeof(*a.ids)) != 0);
    trace_free(&a);
    trace_free(&b);
    buf_free(&text);
}

TEST(burstgpt_leaves_out_what_failed_and_knows_sessions) {
    struct trace t = {0};
    CHECK_EQ(parse_as(&t, TRACE_AUTO,
                      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
                      "Total tokens,Log Type\n"
                      "5,s-1,1,ChatGPT,1100,18,490,Conversation log\n"
                      "45.25,s-2,1,ChatGPT,1087,0,1087,Conversation log\n"
                      "118,s-1,1,GPT-4,2417,276,693,Conversation log\n"),
             TARN_OK);
    CHECK_EQ(t.format, TRACE_BURSTGPT);
    CHECK_EQ(t.n, 2);
    CHECK_EQ(t.skipped, 1);
    CHECK_EQ(t.requests[0].timestamp_ms, 5000);
    CHECK_EQ(t.requests[0].session, t.requests[1].session);
    /* The whole blocks of the first prompt. */
    CHECK_EQ(t.ids[t.requests[1].first], t.ids[t.requests[0].first]);
    CHECK_EQ(t.ids[t.requests[1].first + 1], t.ids[t.requests[0].first + 1]);
    CHECK(t.ids[t.requests[1].first + 2] != t.ids[t.requests[0].first + 2]);
    trace_free(&t);
}

TEST(a_limit_ends_the_reading) {
    struct trace t = {0};
    const struct trace_options o = {.limit = 1};
    CHECK_EQ(trace_parse(&t,
                         SPAN("{\"timestamp\":0,\"input_length\":5,\"output_length\":1,"
                              "\"hash_ids\":[1]}\nbroken\n"),
                         "t", &o, &why),
             TARN_OK);
    CHECK_EQ(t.n, 1);
    trace_free(&t);
}

/* What a recipe promises: so many requests at about that rate, in order, the same for a seed. */
TEST(made_traces) {
    for (unsigned k = 0; k < TRACE_KINDS; k++) {
        const struct trace_recipe recipe = {.kind = k, .requests = 3000, .rate = 4, .seed = 3};
        struct trace a = {0}, b = {0};
        CHECK_EQ(trace_generate(&a, &recipe, &why), TARN_OK);
        CHECK_EQ(trace_generate(&b, &recipe, &why), TARN_OK);
        CHECK_EQ(a.n, 3000);
        CHECK(memcmp(a.requests, b.requests, a.n * sizeof(*a.requests)) == 0);
        CHECK(memcmp(a.ids, b.ids, a.n_ids * sizeof(*a.ids)) == 0);
        uint64_t seen = 0, shared = 0;
        for (size_t i = 0; i < a.n; i++) {
            const struct trace_request *q = &a.requests[i];
            CHECK(i == 0 || q->timestamp_ms >= a.requests[i - 1].timestamp_ms);
            CHECK_EQ(q->n, (q->input + 511) / 512);
            for (uint32_t j = 0; j < q->n; j++) {
                if (a.ids[q->first + j] == seen)
                    seen++;
                else
                    shared++;
            }
        }
        CHECK(shared > seen / 4);
        double seconds = (double)a.requests[a.n - 1].timestamp_ms / 1000;
        CHECK(seconds > 3000 / 4.0 / 2 && seconds < 3000 / 4.0 * 3);
        trace_free(&a);
        trace_free(&b);
    }
}

TEST(made_traces_have_a_most) {
    for (unsigned k = 0; k < TRACE_KINDS; k++) {
        struct trace_recipe recipe = {
            .kind = k, .requests = 3000, .rate = 4, .block = 16, .ids_max = 100000};
        struct trace t = {0};
        CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_ELIMIT);
        CHECK(t.n_ids <= recipe.ids_max);
        CHECK(strstr(why, "more than 100000 blocks of 16 tokens: fewer --requests") != NULL);
        trace_free(&t);
        recipe.requests = 5;
        CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
        CHECK_EQ(t.n, 5);
        trace_free(&t);
    }
}

/* From a third on half of the requests begin with the same 64 blocks, before that none does. */
TEST(a_document_becomes_hot) {
    const struct trace_recipe recipe = {.kind = TRACE_HOT, .requests = 3000, .rate = 4, .seed = 3};
    struct trace t = {0};
    CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
    const struct trace_request *last = &t.requests[t.n - 1];
    size_t early = 0, late = 0;
    uint64_t news = t.ids[last->first];
    for (size_t i = t.n - 1; i > t.n - 20; i--) /* one that comes twice in a few requests */
        for (size_t k = i - 1; k > t.n - 21; k--)
            if (t.ids[t.requests[i].first] == t.ids[t.requests[k].first])
                news = t.ids[t.requests[i].first];
    for (size_t i = 0; i < t.n; i++) {
        if (t.ids[t.requests[i].first] != news) continue;
        CHECK_EQ(t.ids[t.requests[i].first + 63], news + 63);
        (*(i < t.n / 3 ? &early : &late))++;
    }
    CHECK_EQ(early, 0);
    CHECK_WITHIN((double)late, 900, 1100);
    trace_free(&t);
}

static struct trace make(enum trace_kind kind) {
    const struct trace_recipe recipe = {.kind = kind, .requests = 4000, .rate = 5, .seed = 3};
    struct trace t = {0};
    CHECK_EQ(trace_generate(&t, &recipe, &why), TARN_OK);
    return t;
}

/* How often the last block of each request's `depth` first ones was there before. */
static double share_seen(struct trace *t, size_t from, size_t to, uint32_t depth) {
    size_t n = trace_number(t), seen = 0;
    bool *known = xcalloc(n, sizeof(*known));
    for (size_t i = 0; i < to; i++) {
        const struct trace_request *q = &t->requests[i];
        uint32_t at = q->n < depth ? q->n - 1 : depth - 1;
        seen += i >= from && known[t->ids[q->first + at]];
        for (uint32_t k = 0; k < q->n; k++) known[t->ids[q->first + k]] = true;
    }
    free(known);
    return (double)seen / (double)(to - from);
}

TEST(mixes_are_what_they_are_called) {
    struct trace t = make(TRACE_SCAN); /* half of it begins with what never was */
    CHECK_WITHIN(share_seen(&t, 1000, 4000, 1), 0.4, 0.6);
    trace_free(&t);
    t = make(TRACE_BRANCHES); /* a template, of 144, is behind 8 blocks */
    CHECK(share_seen(&t, 1000, 4000, 12) > 0.95);
    CHECK(share_seen(&t, 1000, 4000, 13) < 0.5);
    trace_free(&t);
    t = make(TRACE_RAG); /* an instruction, one piece, four of them */
    CHECK(share_seen(&t, 1000, 4000, 2) == 1);
    CHECK(share_seen(&t, 1000, 4000, 4) > 0.9);
    CHECK(share_seen(&t, 1000, 4000, 10) < 0.5);
    trace_free(&t);
    t = make(TRACE_REGIME); /* 400 s of chats, then documents, which belong to no session */
    size_t early = 0, late = 0;
    for (size_t i = 0; i < t.n; i++)
        if (t.requests[i].session == TRACE_SESSION_NONE)
            (*(t.requests[i].timestamp_ms < 400000 ? &early : &late))++;
    CHECK_EQ(early, 0);
    CHECK(late > 1500);
    trace_free(&t);
    t = make(TRACE_NIGHTLY); /* 400 prompts come twice, of 32 blocks each and no question */
    size_t night = 0;
    uint64_t first[800] = {0};
    for (size_t i = 0; i < t.n && night < 800; i++)
        if (t.requests[i].input == 16384) first[night++] = t.ids[t.requests[i].first];
    CHECK_EQ(night, 800);
    CHECK(memcmp(first, first + 400, 400 * sizeof(*first)) == 0);
    trace_free(&t);
}

TEST(what_is_written_is_read_again) {
    const struct trace_recipe recipe = {.kind = TRACE_CHAT, .requests = 200, .rate = 4, .seed = 3};
    struct trace a = {0}, b = {0};
    CHECK_EQ(trace_generate(&a, &recipe, &why), TARN_OK);
    struct buf text = {0};
    trace_write(&a, 0, a.n, &text);
    const struct trace_options o = {0};
    CHECK_EQ(trace_parse(&b, span_of(text.data, text.len), "t", &o, &why), TARN_OK);
    CHECK_EQ(b.n, a.n);
    for (size_t i = 0; i < a.n; i++) {
        CHECK_EQ(b.requests[i].timestamp_ms, a.requests[i].timestamp_ms);
        CHECK_EQ(b.requests[i].input, a.requests[i].input);
        CHECK_EQ(b.requests[i].n, a.requests[i].n);
        for (uint32_t k = 0; k < a.requests[i].n; k++)
            CHECK_EQ(b.ids[b.requests[i].first + k], a.ids[a.requests[i].first + k]);
    }
    buf_free(&text);
    trace_free(&a);
    trace_free(&b);
}

TEST_MAIN()
