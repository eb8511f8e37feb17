/* What a node shows of itself to another thread of its program, against a master that plays a
 * script. */
#include "../test.h"

#include "master.h"
#include "base/log.h"
#include "hosting/hosting.h"
#include "fake_tier.h"
#include "base/clock.h"

static struct master m;
static struct hosting_view *view;
static struct tarn_host *h;
static tarn_host_segment segment = {.bytes = 1u << 20, .numa_node = -1};

static tarn_options client_options;
static tarn_host_options o;
static struct hosting_plan plan;

static void prepare_with_view(void) {
    log_set_level(LOG_LEVEL_NOTHING);
    disk_reset();
    master_start(&m);
    h = NULL;
    tarn_options_init(&client_options);
    tarn_host_options_init(&o);
    o.name = "n1";
    o.segments = &segment;
    o.n_segments = 1;
    o.shm_socket = "";
    view = hosting_view_create();
    plan =
        (struct hosting_plan){.url = m.s.url, .options = &client_options, .host = &o, .view = view};
}

static void open_with_view(void) {
    prepare_with_view();
    CHECK_EQ(hosting_open(&plan, &h), TARN_OK);
}

static void close_with_view(void) {
    CHECK_EQ(tarn_host_close(&h, 1, 0), TARN_OK);
    master_stop(&m);
}

static void wait_stage(enum hosting_stage stage, const char *begins) {
    char text[VIEW_TEXT_MAX];
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    enum hosting_stage now;
    while ((now = hosting_view_stage(view, text, sizeof(text))) != stage && clock_mono_ms() < until)
        usleep(1000);
    CHECK_EQ(now, stage);
    CHECK(strncmp(text, begins, strlen(begins)) == 0);
}

/* --- figures --- */

struct seen {
    struct figure_walk walk;
    const char *name;
    uint64_t value;
    unsigned figures, found;
};

static void note_figure(struct figure_walk *walk, const struct figure *figure,
                        union figure_value value) {
    struct seen *s = CONTAINER_OF(walk, struct seen, walk);
    s->figures++;
    if (strcmp(figure->name, s->name) != 0) return;
    s->found++;
    s->value = value.number;
}

/* A figure, of a snapshot that is as fresh as can be had; UINT64_MAX: it is not shown. */
static uint64_t figure_now(const char *name, unsigned *figures_p) {
    struct seen s = {.walk = {.show = note_figure}, .name = name, .value = UINT64_MAX};
    for (unsigned part = 0; hosting_view_figures(view, part, &s.walk) != NULL; part++) continue;
    if (figures_p != NULL) *figures_p = s.figures;
    return s.value;
}

TEST(view_without_a_host) {
    view = hosting_view_create();
    wait_stage(HOSTING_CLOSED, "it is starting");
    unsigned figures;
    CHECK_EQ(figure_now("joins", &figures), UINT64_MAX);
    CHECK_EQ(figures, 0);
    hosting_view_destroy(&view);
    CHECK(view == NULL);
}

TEST(view_of_a_life) {
    open_with_view();
    wait_stage(HOSTING_UP, "");
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    while (figure_now("joined", NULL) != 1 && clock_mono_ms() < until) continue;
    CHECK_EQ(figure_now("joins", NULL), 1);
    CHECK_EQ(figure_now("lent_memory", NULL), segment.bytes);
    CHECK_EQ(figure_now("mounted", NULL), 1);
    scripted_kick(&m.s, true);
    wait_stage(HOSTING_JOINING, "waiting for the master");
    while (figure_now("joined", NULL) != 0 && clock_mono_ms() < until) continue;
    CHECK_EQ(figure_now("joined", NULL), 0);
    scripted_hear(&m.s);
    wait_stage(HOSTING_UP, "");
    close_with_view();
    wait_stage(HOSTING_CLOSED, "it is not open");
    /* What it was last is still there, and nobody waits for more. */
    CHECK(figure_now("joins", NULL) >= 1);
    hosting_view_destroy(&view);
}

static void wait_figure(const char *name, uint64_t value) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    while (figure_now(name, NULL) != value && clock_mono_ms() < until) continue;
    CHECK_EQ(figure_now(name, NULL), value);
}

static void set_standing(const char *standing) {
    pthread_mutex_lock(&m.s.mutex);
    m.standing = standing;
    pthread_mutex_unlock(&m.s.mutex);
}

/* --- a program that is a node has patience --- */

struct patience {
    unsigned without_master, with;
};

static void note_wait(void *arg, const char *why) {
    struct patience *p = arg;
    if (why == NULL)
        p->with++;
    else
        p->without_master++;
}

/* As of a node that is stopped for longer than node-timeout while it joins, and of masters that
 * come and go. */
static void refuse_for_a_while(unsigned times) {
    scripted_rule(&m.s, "NODE JOIN *", times, "-LIMIT max-nodes are in the pool already\r\n");
    scripted_rule(&m.s, "SEGMENT MOUNT *", times, "-STALE this node is down: NODE JOIN\r\n");
    scripted_rule(&m.s, "NODE UP *", times, "");
    client_options.backoff_min_ms = client_options.backoff_max_ms = 1;
}

TEST(open_however_often_it_fails) {
    enum { TIMES = 6 };
    struct patience patience = {0};
    prepare_with_view();
    plan.meanwhile = note_wait;
    plan.arg = &patience;
    client_options.connect_timeout_ms = 50; /* the time of a host that is not patient */
    scripted_rule(&m.s, "INFO *", 10, "");  /* hangs up */
    refuse_for_a_while(TIMES);
    CHECK_EQ(hosting_open(&plan, &h), TARN_OK);
    CHECK(patience.without_master > 0);
    CHECK(patience.with > 0);
    CHECK(scripted_count(&m.s, "NODE JOIN *") > 2 * TIMES);
    wait_stage(HOSTING_UP, "");
    close_with_view();
    hosting_view_destroy(&view);
}

TEST(open_in_time_or_not_at_all) {
    prepare_with_view();
    refuse_for_a_while(100);
    client_options.retries = 2;
    CHECK_EQ(hosting_open(&plan, &h), TARN_ELIMIT);
    CHECK_EQ(scripted_count(&m.s, "NODE JOIN *"), 3);
    master_stop(&m);
    hosting_view_destroy(&view);
}

TEST(open_what_patience_does_not_mend) {
    struct patience patience = {0};
    prepare_with_view();
    plan.meanwhile = note_wait;
    plan.arg = &patience;
    scripted_rule(&m.s, "NODE JOIN *", 1, "-BUSY a living node has this name\r\n");
    CHECK_EQ(hosting_open(&plan, &h), TARN_EBUSY);
    /* it was asked to leave before it was started anew */
    scripted_rule(&m.s, "NODE UP *", 1000, "-TRYAGAIN 50 there are fences\r\n");
    master_work(&m, "leave");
    CHECK_EQ(hosting_open(&plan, &h), TARN_ECLOSED);
    CHECK(h == NULL);
    master_stop(&m);
    hosting_view_destroy(&view);
}

/* As with one master: a node of many, which all let go at once, does not wait for others. */
TEST(open_and_be_let_go_by_all_masters_of_a_map) {
    struct patience patience = {0};
    char map[128], reply[160];
    prepare_with_view();
    plan.meanwhile = note_wait;
    plan.arg = &patience;
    segment.bytes = 8u << 20;
    snprintf(map, sizeof(map), "tarn-slots 1\nepoch 1\nshard a 0 127.0.0.1:%u 0-16383\n", m.s.port);
    snprintf(reply, sizeof(reply), "$%zu\r\n%s\r\n", strlen(map), map);
    scripted_rule(&m.s, "CLUSTER MAP", 1000, reply);
    scripted_rule(&m.s, "NODE UP *", 1000, "-TRYAGAIN 50 there are fences\r\n");
    master_work(&m, "leave");
    CHECK_EQ(hosting_open(&plan, &h), TARN_ECLOSED);
    CHECK(scripted_count(&m.s, "CLIENT SETINFO tarn-map 1") > 0);
    CHECK(h == NULL);
    segment.bytes = 1u << 20;
    master_stop(&m);
    hosting_view_destroy(&view);
}

/* --- figures and stages go on --- */

TEST(view_of_what_the_master_says) {
    open_with_view();
    wait_stage(HOSTING_UP, "");
    CHECK(master_beats(&m, 2));
    /* an older one says nothing, which is not 0 */
    CHECK_EQ(figure_now("lent_memory_used", NULL), UINT64_MAX);
    CHECK_EQ(figure_now("draining", NULL), UINT64_MAX);
    CHECK_EQ(figure_now("maintenance", NULL), UINT64_MAX);
    set_standing("*6\r\n$8\r\ndraining\r\n:1\r\n$11\r\nmaintenance\r\n:0\r\n"
                 "$4\r\nused\r\n:4096\r\n");
    wait_figure("lent_memory_used", 4096);
    CHECK_EQ(figure_now("draining", NULL), 1);
    CHECK_EQ(figure_now("maintenance", NULL), 0);
    wait_stage(HOSTING_DRAINING, "it drains");
    set_standing(NULL); /* a failover to an older one */
    wait_figure("lent_memory_used", UINT64_MAX);
    wait_stage(HOSTING_UP, "");
    close_with_view();
    hosting_view_destroy(&view);
}

/* Of a node that has several masters. */
TEST(view_of_parts) {
    struct hosting_view *front = hosting_view_create(), *other = hosting_view_create();
    open_with_view();
    wait_stage(HOSTING_UP, "");
    struct hosting_view *part = view;
    view_part_add(front, "a", part);
    view_part_add(front, "b", other);
    view = front;
    view_tell(front, HOSTING_POPULATING, "memory is set up");
    wait_stage(HOSTING_POPULATING, "memory is set up"); /* as long as it is not open */
    view_tell(front, HOSTING_UP, "");
    view_tell(other, HOSTING_JOINING, "waiting for the master: gone");
    wait_stage(HOSTING_UP, "shard b: waiting for the master: gone");
    wait_figure("lent_memory", segment.bytes);
    CHECK_EQ(figure_now("up", NULL), 1);
    CHECK_EQ(figure_now("lent", NULL), segment.bytes);
    view_part_add(front, "c", part); /* which then counts twice */
    wait_figure("lent_memory", 2 * segment.bytes);
    CHECK_EQ(figure_now("joins", NULL), 2);
    CHECK_EQ(figure_now("segments", NULL), 2);
    view_part_remove(front, part);
    view_part_remove(front, part);
    wait_stage(HOSTING_JOINING, "shard b: waiting");
    view_part_remove(front, other);
    view = part;
    close_with_view();
    hosting_view_destroy(&part);
    hosting_view_destroy(&front);
    hosting_view_destroy(&other);
}

TEST(view_of_a_host_that_is_busy) {
    open_with_view();
    wait_stage(HOSTING_UP, "");
    (void)figure_now("joins", NULL);
    pthread_mutex_lock(&h->mutex); /* which every turn of the control thread takes */
    uint64_t began = clock_mono_ms();
    CHECK_EQ(figure_now("segments", NULL), 1);
    CHECK(clock_mono_ms() - began < MASTER_WAIT_MS);
    pthread_mutex_unlock(&h->mutex);
    close_with_view();
    hosting_view_destroy(&view);
}

TEST_MAIN()
