#include "base/usage.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

uint64_t usage_resident_memory(void) {
    unsigned long long resident = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL) return 0;
    if (fscanf(f, "%*u %llu %llu", &resident, &shared) != 2) resident = shared = 0;
    fclose(f);
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static double usage_seconds(struct timeval tv) {
    return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

void usage_cpu_figures(struct figure_walk *f) {
    struct rusage self, children, thread;
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    getrusage(RUSAGE_THREAD, &thread);
    FIGURE(f, COUNTER_CPU, used_cpu_sys, "of all threads, in the kernel",
           usage_seconds(self.ru_stime));
    FIGURE(f, COUNTER_CPU, used_cpu_user, "of all threads", usage_seconds(self.ru_utime));
    FIGURE(f, COUNTER_CPU, used_cpu_sys_children, "of child processes, in the kernel",
           usage_seconds(children.ru_stime));
    FIGURE(f, COUNTER_CPU, used_cpu_user_children, "of child processes",
           usage_seconds(children.ru_utime));
    FIGURE(f, COUNTER_CPU, used_cpu_sys_main_thread, "of the loop, in the kernel",
           usage_seconds(thread.ru_stime));
    FIGURE(f, COUNTER_CPU, used_cpu_user_main_thread, "of the loop",
           usage_seconds(thread.ru_utime));
}
