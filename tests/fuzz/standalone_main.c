/* A main for fuzz targets where clang's libFuzzer is not at hand: runs LLVMFuzzerTestOneInput over
 * the files given (of directories: all files in them, not deeper) and then over random mutations of
 * them. The same seed gives the same inputs.
 *
 *     resp_fuzz [-runs=N] [-seed=S] [-max_len=BYTES] [-max_total_time=SECONDS] [FILE | DIR]...
 *
 * FUZZ_MUTATIONS in the environment is the default of -runs. An input that kills the target is
 * written to $TMPDIR/NAME-crash-PID. Ends with "N passed, M failed" for tools/run-tests.py. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../buf_splice.h"
#include "base/buf.h"
#include "base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

struct input {
    uint8_t *data;
    size_t len;
};
static struct input *inputs;
static size_t input_count;
static struct input now; /* what the target works on */
static char crash_path[512];

static void save_input(void) {
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return;
    ssize_t rc = write(fd, now.data, now.len);
    static const char word[] = "the input is in ";
    if (rc >= 0) rc = write(STDERR_FILENO, word, sizeof(word) - 1);
    if (rc >= 0) rc = write(STDERR_FILENO, crash_path, strlen(crash_path));
    if (rc >= 0) rc = write(STDERR_FILENO, "\n", 1);
    close(fd);
}

static void on_signal(int sig) {
    save_input();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run_one(const uint8_t *data, size_t len) {
    /* Exactly as long as the input: sanitizers see a read past its end. */
    now.data = xmemdup(data, len);
    now.len = len;
    LLVMFuzzerTestOneInput(now.data, now.len);
    free(now.data);
    now = (struct input){0};
}

static void add_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        perror(path);
        exit(2);
    }
    struct buf b = {0};
    for (;;) {
        buf_reserve(&b, 65536);
        size_t n = fread(b.data + b.len, 1, 65536, f);
        if (n == 0) break;
        b.len += n;
    }
    fclose(f);
    inputs = xrealloc(inputs, (input_count + 1) * sizeof(*inputs));
    inputs[input_count++] = (struct input){(uint8_t *)b.data, b.len};
}

static int not_hidden(const struct dirent *e) {
    return e->d_name[0] != '.';
}

static void add_path(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        exit(2);
    }
    if (!S_ISDIR(st.st_mode)) {
        add_file(path);
        return;
    }
    struct dirent **entries;
    /* sorted: the same seed, the same inputs */
    int n = scandir(path, &entries, not_hidden, alphasort);
    for (int i = 0; i < n; i++) {
        struct buf name = {0};
        buf_printf(&name, "%s/%s", path, entries[i]->d_name);
        buf_append_char(&name, '\0');
        if (stat(name.data, &st) == 0 && S_ISREG(st.st_mode)) add_file(name.data);
        buf_free(&name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
}

/* --- mutations --- */

static void put_random_integer(struct buf *b, size_t at, struct rng *r) {
    static const uint64_t edges[] = {0,          1,          0x7f,      0x80,
                                     0xff,       0x7fff,     0xffff,    0x7fffffff,
                                     0x80000000, 0xffffffff, INT64_MAX, (uint64_t)INT64_MIN,
                                     UINT64_MAX};
    uint64_t v = edges[rng_below(r, sizeof(edges) / sizeof(edges[0]))];
    size_t width = (size_t)1 << rng_below(r, 4);
    if (b->len - at >= width) memcpy(b->data + at, &v, width);
}

static void put_random_decimal(struct buf *b, size_t at, struct rng *r) {
    static const char *const edges[] = {"0",
                                        "-1",
                                        "1",
                                        "10",
                                        "65536",
                                        "1048577",
                                        "2147483647",
                                        "2147483648",
                                        "4294967296",
                                        "9223372036854775807",
                                        "18446744073709551616",
                                        "00"};
    const char *text = edges[rng_below(r, sizeof(edges) / sizeof(edges[0]))];
    size_t digits = 0;
    while (at > 0 && b->data[at - 1] >= '0' && b->data[at - 1] <= '9') at--;
    while (at + digits < b->len && b->data[at + digits] >= '0' && b->data[at + digits] <= '9')
        digits++;
    buf_splice(b, at, digits, text, strlen(text));
}

static void mutate_once(struct buf *b, struct rng *r) {
    if (b->len == 0) {
        buf_append_char(b, (char)rng_next(r));
        return;
    }
    size_t at = rng_below(r, b->len);
    size_t run =
        1 + rng_below(r, rng_below(r, 4) == 0 ? b->len - at : (b->len - at < 8 ? b->len - at : 8));
    switch (rng_below(r, 9)) {
    case 0: b->data[at] = (char)(b->data[at] ^ (1 << rng_below(r, 8))); break;
    case 1: b->data[at] = (char)rng_next(r); break;
    case 2: buf_splice(b, at, run, "", 0); break;
    case 3: { /* a run once more, somewhere */
        char *copy = xmemdup(b->data + at, run);
        buf_splice(b, rng_below(r, b->len + 1), 0, copy, run);
        free(copy);
        break;
    }
    case 4: put_random_integer(b, at, r); break;
    case 5: put_random_decimal(b, at, r); break;
    case 6: { /* a run of another input */
        const struct input *other = &inputs[rng_below(r, input_count)];
        if (other->len == 0) break;
        size_t from = rng_below(r, other->len);
        buf_splice(b, at, rng_below(r, 2) ? run : 0, other->data + from,
                   1 + rng_below(r, other->len - from));
        break;
    }
    case 7: { /* the end of another input, or a cut */
        const struct input *other = &inputs[rng_below(r, input_count)];
        b->len = at;
        if (rng_below(r, 2) && other->len > 0) {
            size_t from = rng_below(r, other->len);
            buf_append(b, other->data + from, other->len - from);
        }
        break;
    }
    default: {
        uint64_t bits = rng_next(r);
        buf_splice(b, at, 0, &bits, 1 + rng_below(r, 8));
    }
    }
}

static bool option(const char *arg, const char *name, uint64_t *value_p) {
    size_t n = strlen(name);
    if (strncmp(arg, name, n) != 0 || arg[n] != '=') return false;
    if (!span_to_u64(span_str(arg + n + 1), value_p)) {
        fprintf(stderr, "%s wants a number\n", name);
        exit(2);
    }
    return true;
}

int main(int argc, char **argv) {
    uint64_t runs = 5000, seed = 1, max_len = 65536, max_time = 40;
    const char *env = getenv("FUZZ_MUTATIONS"), *tmp = getenv("TMPDIR"),
               *slash = strrchr(argv[0], '/');
    if (env != NULL) span_to_u64(span_str(env), &runs);
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        if (option(argv[i], "-runs", &runs) || option(argv[i], "-seed", &seed) ||
            option(argv[i], "-max_len", &max_len) || option(argv[i], "-max_total_time", &max_time))
            continue;
        if (argv[i][0] != '-') add_path(argv[i]);
    }
    snprintf(crash_path, sizeof(crash_path), "%s/%s-crash-%d", tmp != NULL ? tmp : "/tmp",
             slash ? slash + 1 : argv[0], (int)getpid());
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(save_input);
    else
        signal(SIGSEGV, on_signal), signal(SIGBUS, on_signal);
    signal(SIGABRT, on_signal);

    size_t given = input_count;
    for (size_t i = 0; i < given; i++) run_one(inputs[i].data, inputs[i].len);
    if (given == 0) {
        inputs = xcalloc(1, sizeof(*inputs));
        input_count = 1;
        run_one((const uint8_t *)"", 0);
    }
    struct rng r;
    rng_seed(&r, seed);
    struct buf b = {0};
    time_t start = time(NULL);
    uint64_t done = 0;
    for (; done < runs && (max_time == 0 || (uint64_t)(time(NULL) - start) < max_time); done++) {
        const struct input *from = &inputs[rng_below(&r, input_count)];
        buf_clear(&b);
        buf_append(&b, from->data, from->len);
        for (uint64_t n = 1 + rng_below(&r, 6); n > 0; n--) mutate_once(&b, &r);
        if (b.len > max_len) b.len = max_len;
        run_one((const uint8_t *)(b.data != NULL ? b.data : ""), b.len);
    }
    buf_free(&b);
    for (size_t i = 0; i < input_count; i++) free(inputs[i].data);
    free(inputs);
    printf("%zu inputs and %llu mutations of them (seed %llu)\n", given, (unsigned long long)done,
           (unsigned long long)seed);
    printf("1 passed, 0 failed\n"); /* a failure does not come this far */
    return 0;
}
