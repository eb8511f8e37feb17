/* Between pool.c and the proxies of hosts. */
#ifndef TARN_TESTS_CLIENT_POOL_HOST_H
#define TARN_TESTS_CLIENT_POOL_HOST_H

#include <stdint.h>

void pool_hosts_start(void);
void pool_hosts_stop(void);
/* Of the real one. */
void pool_host_set_port(unsigned host, uint16_t port);
/* Of the proxies. */
const char *pool_host_address(void);
uint16_t pool_host_port(unsigned host);
/* Nothing is on its way to it, or that is a violation. */
void pool_host_must_be_quiet(unsigned host);

#endif
