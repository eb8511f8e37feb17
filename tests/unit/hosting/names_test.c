/* Nodes of one name on a machine, of as many pools, that start at the same moment: each has a
 * socket of its own. */
#include "../test.h"

#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "host/host.h"
#include "hosting/hosting.h"

#define TWINS 8

static pthread_barrier_t start;

static void *begin(void *arg) {
    tarn_host_segment segment = {.bytes = 1u << 20, .numa_node = -1};
    tarn_options client;
    tarn_host_options host;
    tarn_options_init(&client);
    tarn_host_options_init(&host);
    host.name = "twin";
    host.segments = &segment;
    host.n_segments = 1;
    struct hosting_plan plan = {.url = "tarn://127.0.0.1:1", .options = &client, .host = &host};
    pthread_barrier_wait(&start);
    CHECK_EQ(hosting_begin(&plan, arg), TARN_OK); /* no master is there yet */
    return NULL;
}

TEST(twins_have_sockets_of_their_own) {
    pthread_t thread[TWINS];
    struct tarn_host *h[TWINS];
    char dir[] = "/tmp/tarn-names.XXXXXX";
    log_set_level(LOG_LEVEL_NOTHING);
    CHECK(mkdtemp(dir) != NULL);
    setenv("RUNTIME_DIRECTORY", dir, 1);
    for (int round = 0; round < 10; round++) {
        pthread_barrier_init(&start, NULL, TWINS);
        for (int i = 0; i < TWINS; i++) CHECK_EQ(pthread_create(&thread[i], NULL, begin, &h[i]), 0);
        for (int i = 0; i < TWINS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
        for (int i = 0; i < TWINS; i++) {
            CHECK_EQ(access(host_shm_path(h[i]->host), F_OK), 0);
            for (int j = 0; j < i; j++)
                CHECK(strcmp(host_shm_path(h[i]->host), host_shm_path(h[j]->host)) != 0);
        }
        for (int i = 0; i < TWINS; i++) {
            hosting_end_begin(h[i], false, 0);
            hosting_end(&h[i]);
        }
        pthread_barrier_destroy(&start);
    }
    CHECK_EQ(rmdir(dir), 0); /* nothing is left */
}

TEST_MAIN()
