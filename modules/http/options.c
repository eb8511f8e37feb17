/* The words behind http.so. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "http/http.h"

struct http_options http_options;

static bool number_parse(const char *word, unsigned long max, unsigned long *value_p) {
    char *end;
    errno = 0;
    unsigned long v = strtoul(word, &end, 10);
    if (word[0] < '0' || word[0] > '9' || *end != '\0' || errno != 0 || v > max) return false;
    *value_p = v;
    return true;
}

/* The first line of the file, which must be its owner's alone. */
static tarn_status token_read(const char *path, char *error, size_t cap) {
    struct stat st;
    FILE *f = fopen(path, "re");
    if (f == NULL || fstat(fileno(f), &st) != 0) {
        snprintf(error, cap, "token-file %s: %s", path, strerror(errno));
        if (f != NULL) fclose(f);
        return TARN_EINVAL;
    }
    char line[sizeof(http_options.token) + 2] = "";
    bool some = fgets(line, sizeof(line), f) != NULL;
    fclose(f);
    line[strcspn(line, "\r\n")] = '\0';
    size_t len = strlen(line);
    if (!some || len < 16 || len >= sizeof(http_options.token) ||
        strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=") !=
            len) {
        snprintf(error, cap,
                 "token-file %s: its first line must be a token of 16 to %zu letters, digits and "
                 "-._~+/=",
                 path, sizeof(http_options.token) - 1);
        return TARN_EINVAL;
    }
    if (st.st_mode & (S_IRGRP | S_IROTH | S_IWGRP | S_IWOTH)) {
        snprintf(error, cap, "token-file %s: others can read or write it; chmod 600 it", path);
        return TARN_EINVAL;
    }
    memcpy(http_options.token, line, len + 1);
    return TARN_OK;
}

static tarn_status word_parse(const char *name, const char *value, char *error, size_t cap) {
    unsigned long v;
    if (strcmp(name, "port") == 0) {
        if (!number_parse(value, UINT16_MAX, &v)) {
            snprintf(error, cap, "port %s: must be a number from 0 (any free port) to 65535",
                     value);
            return TARN_EINVAL;
        }
        http_options.port = (uint16_t)v;
    } else if (strcmp(name, "connections") == 0) {
        if (!number_parse(value, 1024, &v) || v < 4) {
            snprintf(error, cap, "connections %s: must be a number from 4 to 1024", value);
            return TARN_EINVAL;
        }
        http_options.connections = (unsigned)v;
    } else if (strcmp(name, "timeout") == 0) {
        if (!number_parse(value, 3600, &v) || v < 1) {
            snprintf(error, cap, "timeout %s: must be a number of seconds from 1 to 3600", value);
            return TARN_EINVAL;
        }
        http_options.timeout_s = (unsigned)v;
    } else if (strcmp(name, "bind") == 0) {
        if (http_options.n_bind == HTTP_BINDS_MAX) {
            snprintf(error, cap, "bind %s: there may be up to %u", value, HTTP_BINDS_MAX);
            return TARN_ELIMIT;
        }
        http_options.bind[http_options.n_bind++] = value;
    } else if (strcmp(name, "tls") == 0) {
        http_options.tls = strcmp(value, "yes") == 0;
        if (!http_options.tls && strcmp(value, "no") != 0) {
            snprintf(error, cap, "tls %s: must be yes or no", value);
            return TARN_EINVAL;
        }
    } else if (strcmp(name, "token-file") == 0) {
        return token_read(value, error, cap);
    } else {
        snprintf(error, cap,
                 "unknown word '%s': port N, bind ADDRESS, token-file FILE, tls yes, connections N "
                 "and timeout S are known",
                 name);
        return TARN_EINVAL;
    }
    return TARN_OK;
}

tarn_status http_options_parse(size_t argc, const char *const *argv, char *error, size_t cap) {
    http_options = (struct http_options){.port = 9479, .connections = 64, .timeout_s = 30};
    for (size_t i = 0; i < argc; i += 2) {
        if (i + 1 == argc) {
            snprintf(error, cap, "'%s' wants a value, or is unknown", argv[i]);
            return TARN_EINVAL;
        }
        tarn_status status = word_parse(argv[i], argv[i + 1], error, cap);
        if (status != TARN_OK) return status;
    }
    if (http_options.n_bind == 0) http_options.bind[http_options.n_bind++] = "127.0.0.1";
    return TARN_OK;
}
