/* Options, injections, counts; the lock and descriptors that count events. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

struct fake_library fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .start_lock = PTHREAD_MUTEX_INITIALIZER,
    .acked = PTHREAD_COND_INITIALIZER,
    .dirty = TAILQ_HEAD_INITIALIZER(fake.dirty),
    .epoll_fd = -1,
    .kick_fd = -1,
};

_Noreturn void fake_die(const char *text) {
    fprintf(stderr, "fake verbs: %s\n", text);
    abort();
}

uint64_t fake_now(void) {
    return clock_mono_ns();
}

/* --- options --- */

static const struct fake_limits limits_usual = {
    .max_qp_wr = 1024,
    .max_sge = 16,
    .max_inline = 512,
    .max_qp = 4096,
    .max_cqe = 1u << 20,
    .max_mr = 1u << 18,
    .max_pd = 4096,
    .max_rd_atom = 16,
    .max_msg = 1u << 30,
    .max_mr_size = UINT64_C(1) << 40,
    .relaxed = true,
    .dmabuf = true,
    .speed = 32, /* 25 Gb/s, four lanes */
    .width = 2,
    .mtu = IBV_MTU_4096,
    .stall_ms = 3000,
    .cm_ms = 20000,
};

static bool option_number(const char *name, const char *value) {
    struct fake_limits *l = &fake.limits;
    const struct {
        const char *name;
        unsigned *small;
        uint64_t *large;
        bool *yes;
    } known[] = {
        {"max_qp_wr", &l->max_qp_wr, NULL, NULL},
        {"max_sge", &l->max_sge, NULL, NULL},
        {"max_inline", &l->max_inline, NULL, NULL},
        {"max_qp", &l->max_qp, NULL, NULL},
        {"max_cqe", &l->max_cqe, NULL, NULL},
        {"max_mr", &l->max_mr, NULL, NULL},
        {"max_pd", &l->max_pd, NULL, NULL},
        {"max_rd_atom", &l->max_rd_atom, NULL, NULL},
        {"max_msg", &l->max_msg, NULL, NULL},
        {"speed", &l->speed, NULL, NULL},
        {"width", &l->width, NULL, NULL},
        {"mtu", &l->mtu, NULL, NULL},
        {"max_mr_size", NULL, &l->max_mr_size, NULL},
        {"delay_us", NULL, &l->delay_us, NULL},
        {"stall_ms", NULL, &l->stall_ms, NULL},
        {"cm_ms", NULL, &l->cm_ms, NULL},
        {"relaxed", NULL, NULL, &l->relaxed},
        {"dmabuf", NULL, NULL, &l->dmabuf},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        char *end;
        unsigned long long v = strtoull(value, &end, 10);
        if (end == value || *end != '\0') return false;
        if (known[i].small != NULL) *known[i].small = (unsigned)v;
        if (known[i].large != NULL) *known[i].large = v;
        if (known[i].yes != NULL) *known[i].yes = v != 0;
        return true;
    }
    return false;
}

/* Under the lock; nothing is alive. */
static void configure(const char *text) {
    fake_devices_free();
    fake.limits = limits_usual;
    memset(fake.fail, 0, sizeof(fake.fail));
    fake.hold = false;
    fake.control_at = 0;
    char copy[1024], addresses[512] = "", *save = NULL;
    unsigned devices = 1;
    snprintf(copy, sizeof(copy), "%s", text != NULL ? text : "");
    for (char *word = strtok_r(copy, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        char *value = strchr(word, '=');
        if (value == NULL) fake_die("FAKE_VERBS: name=value,...");
        *value++ = '\0';
        if (strcmp(word, "devices") == 0)
            devices = (unsigned)atoi(value);
        else if (strcmp(word, "addresses") == 0)
            snprintf(addresses, sizeof(addresses), "%s", value);
        else if (strcmp(word, "sysfs") == 0)
            snprintf(fake.limits.sysfs, sizeof(fake.limits.sysfs), "%s", value);
        else if (strcmp(word, "control") == 0)
            snprintf(fake.limits.control, sizeof(fake.limits.control), "%s", value);
        else if (!option_number(word, value))
            fake_die("FAKE_VERBS has an option that there is not");
    }
    char *next = addresses;
    for (unsigned i = 0; i < devices && i < FAKE_DEVICES_MAX; i++) {
        char name[16];
        snprintf(name, sizeof(name), "fake%u", i);
        char *address = strsep(&next, ";");
        if (fake_device_create(name, address != NULL && *address != '\0' ? address : NULL) == NULL)
            fake_die("FAKE_VERBS has an address that is none");
    }
    fake.configured = true;
}

void fake_configure(const char *text) {
    fake_lock();
    if (!fake_idle()) fake_die("configured while it is in use");
    configure(text != NULL ? text : getenv("FAKE_VERBS"));
    fake_unlock();
}

/* --- the lock --- */

void fake_lock(void) {
    __atomic_add_fetch(&fake.waiters, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&fake.lock);
    __atomic_sub_fetch(&fake.waiters, 1, __ATOMIC_RELAXED);
    if (!fake.configured) configure(getenv("FAKE_VERBS"));
}

void fake_unlock(void) {
    pthread_mutex_unlock(&fake.lock);
}

void fake_wait_100ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_nsec += 100000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_nsec -= 1000000000;
        ts.tv_sec++;
    }
    pthread_cond_timedwait(&fake.acked, &fake.lock, &ts);
}

/* --- descriptors: one readable count each; the program may make them non-blocking --- */

int fake_new_fd(void) {
    return eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
}

void fake_fd_raise(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof(one)) != sizeof(one)) fake_die("an event descriptor was closed");
}

/* What was raised and will not be taken. A thread that takes at this moment finds nothing and goes
 * on waiting. */
void fake_fd_lower(int fd, unsigned n) {
    for (; n > 0; n--) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t one;
        if (poll(&p, 1, 0) != 1 || read(fd, &one, sizeof(one)) != sizeof(one)) return;
    }
}

ssize_t fake_fd_take(int fd) {
    uint64_t one;
    return read(fd, &one, sizeof(one)) == sizeof(one) ? 0 : -1;
}

/* --- injections --- */

void fake_fail(enum fake_call call, unsigned after, unsigned times, int error) {
    fake_lock();
    fake.fail[call].after = after;
    fake.fail[call].times = times;
    fake.fail[call].error = error;
    fake_unlock();
}

bool fake_fails(enum fake_call call) {
    if (fake.fail[call].times == 0) return false;
    if (fake.fail[call].after > 0) {
        fake.fail[call].after--;
        return false;
    }
    fake.fail[call].times--;
    errno = fake.fail[call].error;
    return true;
}

void fake_hold(bool hold) {
    fake_lock();
    fake.hold = hold;
    fake_nic_kick();
    fake_unlock();
}

void fake_delay_us(uint64_t us) {
    fake_lock();
    fake.limits.delay_us = us;
    fake_unlock();
}

void fake_qp_error(uint32_t qp_num, enum ibv_wc_status status) {
    fake_lock();
    struct fake_qp *qp = fake_qp_find(qp_num);
    if (qp != NULL) {
        struct ibv_async_event event = {.element.qp = &qp->ibv, .event_type = IBV_EVENT_QP_FATAL};
        fake_qp_fail(qp, status);
        fake_async_raise(fake_context_of(qp->ibv.context), &event);
    }
    fake_unlock();
}

void fake_cut(uint32_t qp_num) {
    fake_lock();
    struct fake_qp *qp = fake_qp_find(qp_num);
    if (qp != NULL && qp->conn != NULL) {
        qp->conn->cut = true;
        fake_link_recheck(qp->conn);
    }
    fake_unlock();
}

void fake_disconnect(uint32_t qp_num) {
    fake_lock();
    struct fake_qp *qp = fake_qp_find(qp_num);
    if (qp != NULL && qp->conn != NULL && qp->conn->id != NULL) fake_cm_disconnected(qp->conn->id);
    fake_unlock();
}

unsigned fake_count(enum fake_object object) {
    fake_lock();
    unsigned n = fake.count[object];
    fake_unlock();
    return n;
}

bool fake_idle(void) {
    unsigned n = 0;
    struct fake_context *c;
    for (unsigned i = 0; i < FAKE_OBJECTS; i++) n += fake.count[i];
    for (unsigned i = 0; i < fake.devices; i++)
        LIST_FOREACH(c, &fake.device[i]->contexts, link) n += c->users + (c != fake.device[i]->cm);
    return n == 0;
}

unsigned fake_count_all(void) {
    unsigned n = 0;
    for (unsigned i = 0; i < FAKE_OBJECTS; i++) n += fake_count(i);
    return n;
}

struct fake_served fake_served(void) {
    fake_lock();
    struct fake_served served = fake.served;
    fake_unlock();
    return served;
}

/* --- the control file: for processes that a test does not live in --- */

static void control_line(char *line) {
    char *save = NULL, *what = strtok_r(line, " \n", &save), *name = strtok_r(NULL, " \n", &save),
         *how = strtok_r(NULL, " \n", &save);
    fake_unlock();
    if (what != NULL && name != NULL) {
        if (strcmp(what, "port") == 0 && how != NULL)
            fake_port(name, strcmp(how, "up") == 0);
        else if (strcmp(what, "remove") == 0)
            fake_device_remove(name, false);
        else if (strcmp(what, "hold") == 0)
            fake_hold(strcmp(name, "on") == 0);
        else if (strcmp(what, "delay_us") == 0)
            fake_delay_us(strtoull(name, NULL, 10));
        else if (strcmp(what, "qp") == 0 && how != NULL && strcmp(how, "cut") == 0)
            fake_cut((uint32_t)strtoul(name, NULL, 10));
        else if (strcmp(what, "qp") == 0 && how != NULL)
            fake_qp_error((uint32_t)strtoul(name, NULL, 10), IBV_WC_FATAL_ERR);
    }
    fake_lock();
}

void fake_do_control(void) {
    if (fake.limits.control[0] == '\0') return;
    FILE *f = fopen(fake.limits.control, "re");
    if (f == NULL) return;
    char line[256];
    if (fseek(f, (long)fake.control_at, SEEK_SET) == 0)
        while (fgets(line, sizeof(line), f) != NULL && strchr(line, '\n') != NULL) {
            fake.control_at = (uint64_t)ftell(f);
            control_line(line);
        }
    fclose(f);
}
