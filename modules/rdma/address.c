/* Network addresses, as packed keys and the GIDs of RoCE have them: 16 bytes, IPv4 mapped into
 * IPv6. librdmacm gets a sockaddr of them. */
#include <arpa/inet.h>

#include "rdma/rdma.h"

struct rdma_address rdma_address_of(const void *ip) {
    struct rdma_address a = {.text = ""};
    memcpy(&a.ip, ip, sizeof(a.ip));
    bool v4 = rdma_address_is_v4(&a);
    (void)inet_ntop(v4 ? AF_INET : AF_INET6, (const char *)ip + (v4 ? 12 : 0), a.text,
                    sizeof(a.text));
    return a;
}

struct rdma_address rdma_address_of_sockaddr(const struct sockaddr *sa) {
    if (sa->sa_family == AF_INET6)
        return rdma_address_of(&((const struct sockaddr_in6 *)sa)->sin6_addr);
    uint8_t ip[16] = {[10] = 0xff, [11] = 0xff};
    memcpy(ip + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    return rdma_address_of(ip);
}

bool rdma_address_parse(const char *text, struct rdma_address *a) {
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct in6_addr v6;
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        *a = rdma_address_of_sockaddr((const struct sockaddr *)&v4);
    else if (inet_pton(AF_INET6, text, &v6) == 1)
        *a = rdma_address_of(&v6);
    else
        return false;
    return true;
}

struct sockaddr_storage rdma_address_sockaddr(const struct rdma_address *a, uint16_t port) {
    struct sockaddr_storage sa = {0};
    if (rdma_address_is_v4(a)) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&sa;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&v4->sin_addr, a->ip.s6_addr + 12, 4);
    } else {
        *(struct sockaddr_in6 *)&sa = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = a->ip};
    }
    return sa;
}
