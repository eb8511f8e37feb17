/* The command line of tarn-node. */
#ifndef TARN_NODE_OPTIONS_H
#define TARN_NODE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/log.h"
#include "module/loader.h"
#include "tarn.h"
#include "tls/tls.h"

#define NODE_MODULES_MAX 8u

/* --loadmodule FILE [word ...] */
struct node_module {
    char *path;
    char *word[MODULE_WORDS_MAX];
    size_t words;
};

struct node_options {
    const char *master;     /* URL */
    bool secure;            /* which is one of TLS */
    struct tls_options tls; /* of ports that modules serve; borrowed words */
    tarn_options client;
    tarn_host_options host; /* its arrays are owned here */
    tarn_host_segment *segments;
    const char **bind;
    const char *port_file, *pid_file, *log_file, *password_file;
    enum log_level log_level;
    uint64_t exit_timeout_ms;
    bool daemonize, drain_on_exit, keeps; /* keeps: a restart finds something again */
    bool help, version;
    struct node_module *module;
    size_t modules;
    char *owned[80]; /* pieces of arguments, and the password */
    size_t n_owned;
};

/* argv stays borrowed. false: why has a sentence that names the option and what to do.
 * node_options_free in any case. */
bool node_options_parse(struct node_options *o, int argc, char **argv, char *why, size_t why_size);
/* The password, from the file or the environment; the URL's own wins later. */
bool node_options_password(struct node_options *o, const char *environment, char *why,
                           size_t why_size);
void node_options_free(struct node_options *o);

#endif
