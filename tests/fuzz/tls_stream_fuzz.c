/* TLS streams against any bytes, in two ways that the first byte chooses:
 *
 *   - a server or a client gets what follows as what came from its socket, cut anywhere;
 *   - a pair that is through with its handshake follows a script: write, carry so many bytes, read,
 *     change a byte on the way, say goodbye, end. Whatever happens on the way, what is read is the
 *     beginning of what was written.
 *
 * Buffers stay within their bounds throughout. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tls_feed.h"
#include "../unit/certs.h"
#include "base/assert.h"
#include "base/buf.h"
#include "tls/tls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tls_context *server_context, *client_context;

static void set_up(void) {
    char dir[256], ca_crt[300], crt[300], key[300], why[TLS_WHY_MAX];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof(dir), "%s/tls-fuzz-XXXXXX", tmp != NULL ? tmp : "/tmp");
    TARN_ASSERT(mkdtemp(dir) != NULL);
    snprintf(ca_crt, sizeof(ca_crt), "%s/ca.crt", dir);
    snprintf(crt, sizeof(crt), "%s/host.crt", dir);
    snprintf(key, sizeof(key), "%s/host.key", dir);
    struct cert ca, host;
    cert_make(&ca, &(struct cert_plan){.name = "CA", .ca = true}, NULL);
    cert_make(&host, &(struct cert_plan){.name = "host"}, &ca);
    cert_write(&ca, dir, "ca", NULL);
    cert_write(&host, dir, "host", NULL);
    server_context = tls_context_create(
        TLS_SERVER,
        &(struct tls_options){
            .cert_file = crt, .key_file = key, .ca_file = ca_crt, .auth = TLS_AUTH_OPTIONAL},
        why);
    client_context = tls_context_create(
        TLS_CLIENT, &(struct tls_options){.ca_file = ca_crt, .any_name = true}, why);
    TARN_ASSERT(server_context != NULL && client_context != NULL);
    cert_free(&ca);
    cert_free(&host);
    unlink(ca_crt);
    unlink(crt);
    unlink(key);
    snprintf(key, sizeof(key), "%s/ca.key", dir);
    unlink(key);
    rmdir(dir);
}

static void check(const struct tls_stream *s) {
    size_t unsent;
    tls_out(s, &unsent);
    TARN_ASSERT(unsent <= 3 * TLS_OUT_MAX);
    TARN_ASSERT(tls_memory(s) < 8 * TLS_OUT_MAX);
    TARN_ASSERT((tls_state(s) == TLS_FAILED) == (tls_why(s)[0] != '\0'));
}

/* --- bytes from a socket --- */

static void run_raw(const uint8_t *data, size_t size, bool as_server, size_t piece) {
    char out[512];
    struct tls_stream *s = tls_stream_create(as_server ? server_context : client_context, NULL);
    if (!as_server) tls_handshake(s);
    for (size_t at = 0; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        tls_feed(s, data + at, n);
        TARN_ASSERT(tls_read(s, out, sizeof(out)) == 0); /* nobody can have got so far */
        TARN_ASSERT(tls_write(s, "x", 1) == 0);
        check(s);
    }
    tls_in_end(s);
    tls_read(s, out, sizeof(out));
    TARN_ASSERT(tls_state(s) == TLS_FAILED);
    tls_close(s);
    check(s);
    tls_stream_destroy(&s);
}

/* --- a pair --- */

struct side {
    struct tls_stream *s;
    uint64_t written, read; /* byte n of what is written is pattern(n) */
};

static char pattern(uint64_t n) {
    return (char)(n * 37 + n / 251);
}

static void carry(struct side *from, struct side *to, size_t max, int change) {
    size_t len;
    const void *out = tls_out(from->s, &len);
    if (len > max) len = max;
    char *bytes = xmemdup(out, len);
    if (change >= 0 && len > 0) bytes[(size_t)change % len] ^= 1 << change % 8;
    size_t taken = tls_feed(to->s, bytes, len);
    bool over = tls_state(to->s) >= TLS_CLOSED;
    free(bytes);
    tls_out_sent(from->s, over ? len : taken);
    /* The changed byte may not have been taken yet; then it comes again as it was. */
}

static void say(struct side *a, size_t len) {
    char *bytes = xmalloc(len + 1);
    for (size_t i = 0; i < len; i++) bytes[i] = pattern(a->written + i);
    a->written += tls_write(a->s, bytes, len);
    free(bytes);
}

static void hear(struct side *a, const struct side *from, size_t len) {
    char *bytes = xmalloc(len + 1);
    size_t n = tls_read(a->s, bytes, len);
    TARN_ASSERT(n <= len && a->read + n <= from->written);
    for (size_t i = 0; i < n; i++) TARN_ASSERT(bytes[i] == pattern(a->read + i));
    a->read += n;
    free(bytes);
}

static void shake(struct side *a, struct side *b) {
    tls_handshake(b->s);
    for (unsigned i = 0; i < 10; i++) {
        carry(b, a, SIZE_MAX, -1);
        hear(a, b, 0);
        tls_handshake(a->s);
        carry(a, b, SIZE_MAX, -1);
        tls_handshake(b->s);
    }
    TARN_ASSERT(tls_state(a->s) == TLS_OPEN && tls_state(b->s) == TLS_OPEN);
}

/* Three bytes an order: what and by whom, and how much. */
static void run_pair(const uint8_t *data, size_t size) {
    struct side side[2] = {{tls_stream_create(server_context, NULL), 0, 0},
                           {tls_stream_create(client_context, NULL), 0, 0}};
    shake(&side[0], &side[1]);
    bool changed = false, ended = false;
    for (size_t i = 0; i + 3 <= size; i += 3) {
        struct side *a = &side[data[i] & 1], *b = &side[~data[i] & 1];
        size_t n = (size_t)data[i + 1] << (data[i + 2] & 7) << 1 | data[i + 2] >> 7;
        switch (data[i] >> 1 & 7) {
        case 0:
        case 1: say(a, n); break;
        case 2:
        case 3: carry(a, b, n, -1); break;
        case 4:
        case 5: hear(a, b, n); break;
        case 6:
            carry(a, b, n, data[i + 2]);
            changed = true;
            break;
        default:
            if (data[i + 1] & 1) tls_close(a->s);
            if (data[i + 1] & 2) tls_in_end(a->s), ended = true;
        }
        check(a->s);
        check(b->s);
    }
    for (unsigned i = 0; i < 40 && !changed && !ended; i++) /* the rest of it */
        for (unsigned k = 0; k < 2; k++) {
            carry(&side[k], &side[1 - k], SIZE_MAX, -1);
            hear(&side[1 - k], &side[k], 1 << 18);
        }
    for (unsigned k = 0; k < 2; k++) {
        TARN_ASSERT(changed || ended || side[k].read == side[1 - k].written);
        tls_stream_destroy(&side[k].s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (server_context == NULL) set_up();
    if (size < 2) return 0;
    if (data[0] & 1)
        run_pair(data + 1, size - 1);
    else
        run_raw(data + 2, size - 2, (data[0] & 2) != 0, data[1] == 0 ? size : data[1]);
    return 0;
}
