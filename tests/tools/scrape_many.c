/* What asking many engines for their /metrics takes of the thread that does it: docs/BENCHMARKS.md
 * has its numbers.
 *
 *     scrape_many [ENGINES [SECONDS]]        200 engines, 10 s
 *
 * Each once a second. A process beside it answers all of them, on connections that are kept, with
 * what a vLLM of one rank tells: histograms for the most part. CPU time of the thread. */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "scrape/scraper.h"

#define HISTOGRAMS 30u
#define BUCKETS    22u

static void answer_make(struct buf *out) {
    struct buf b = {NULL, 0, 0};
    static const char labels[] = "engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"";
    buf_printf(&b, "vllm:num_requests_running{%s} 7.0\nvllm:num_requests_waiting{%s} 2.0\n", labels,
               labels);
    buf_printf(&b, "vllm:kv_cache_usage_perc{%s} 0.25\n", labels);
    for (unsigned h = 0; h < HISTOGRAMS; h++) {
        buf_printf(&b, "# HELP vllm:some_time_%u_seconds Histogram of some time.\n", h);
        for (unsigned i = 0; i < BUCKETS; i++)
            buf_printf(&b, "vllm:some_time_%u_seconds_bucket{%s,le=\"%u.0\"} %u.0\n", h, labels, i,
                       7919 * i);
    }
    buf_printf(out, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", b.len);
    buf_append(out, b.data, b.len);
    buf_free(&b);
}

/* --- the process that answers --- */

#define CONNECTIONS_MAX 2048u

static void say(int fd, struct span text) {
    while (text.len > 0) {
        ssize_t n = send(fd, text.data, text.len, MSG_NOSIGNAL);
        if (n <= 0) return;
        text = span_of(text.data + n, text.len - (size_t)n);
    }
}

static _Noreturn void serve(int listening) {
    static struct pollfd p[CONNECTIONS_MAX];
    struct buf answer = {NULL, 0, 0};
    char request[4096];
    nfds_t n = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    answer_make(&answer);
    p[0] = (struct pollfd){.fd = listening, .events = POLLIN};
    while (poll(p, n, -1) >= 0) {
        for (nfds_t i = 1; i < n; i++) {
            if (p[i].revents == 0) continue;
            if (recv(p[i].fd, request, sizeof(request), 0) > 0) {
                say(p[i].fd, span_of(answer.data, answer.len)); /* a request comes in one piece */
                continue;
            }
            close(p[i].fd);
            p[i--] = p[--n];
        }
        if (p[0].revents != 0 && n < CONNECTIONS_MAX)
            p[n++] = (struct pollfd){.fd = accept(listening, NULL, NULL), .events = POLLIN};
    }
    _exit(1);
}

/* --- the thread that asks --- */

/* Its CPU time in seconds, and how much of that in the kernel. */
static double scrape_cpu(double *kernel_p) {
    double user = 0, kernel = 0;
    char path[64], line[512];
    for (int tid = getpid(); tid < getpid() + 100; tid++) {
        unsigned long u, k;
        snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
        FILE *f = fopen(path, "r");
        if (f == NULL) continue;
        if (fgets(line, sizeof(line), f) != NULL && strstr(line, "(scrape)") != NULL &&
            sscanf(strchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &u,
                   &k) == 2) {
            user = (double)u / (double)sysconf(_SC_CLK_TCK);
            kernel = (double)k / (double)sysconf(_SC_CLK_TCK);
        }
        fclose(f);
    }
    *kernel_p = kernel;
    return user + kernel;
}

int main(int argc, char **argv) {
    unsigned engines = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 200;
    unsigned seconds = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 10;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    struct scraper_config config;
    struct scraper *s;
    if (engines == 0 || engines > 1024 || seconds == 0) return 2;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TARN_ASSERT(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1024) == 0 &&
                getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    pid_t child = fork();
    if (child == 0) serve(fd);

    struct scraper_source **source = xcalloc(engines, sizeof(struct scraper_source *));
    struct scraper_figures sum = {0};
    double kernel, before, cpu;
    char url[64];
    scraper_defaults(&config);
    TARN_ASSERT(scraper_create(&config, &s) == TARN_OK);
    for (unsigned i = 0; i < engines; i++) {
        int n = snprintf(url, sizeof(url), "http://127.0.0.1:%u/metrics", ntohs(a.sin_port));
        TARN_ASSERT(scraper_add(s, span_of(url, (size_t)n), NULL, &source[i]) == TARN_OK);
    }
    sleep(2);
    before = scrape_cpu(&kernel);
    double kernel_before = kernel;
    sleep(seconds);
    cpu = scrape_cpu(&kernel) - before;
    for (unsigned i = 0; i < engines; i++) {
        struct scraper_info info;
        scraper_info(source[i], &info);
        sum.scrape_answers += info.figures.scrape_answers;
        sum.scrape_failures += info.figures.scrape_failures;
        sum.scrape_bytes += info.figures.scrape_bytes;
    }
    printf("%u engines, each once a second, %llu bytes an answer: %.1f %% of a core, %.1f %% of it "
           "in the kernel; %llu answers, %llu failures\n",
           engines, (unsigned long long)(sum.scrape_bytes / (sum.scrape_answers + 1)),
           100 * cpu / seconds, cpu > 0 ? 100 * (kernel - kernel_before) / cpu : 0,
           (unsigned long long)sum.scrape_answers, (unsigned long long)sum.scrape_failures);
    scraper_destroy(&s);
    free(source);
    kill(child, SIGKILL);
    return 0;
}
