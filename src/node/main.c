/* tarn-node: a storage node, which lends this machine's memory and disks to the pool of a master.
 * Little more than tarn_host_open and tarn_host_close; see ../tarn.h. */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/daemon.h"
#include "base/file.h"
#include "module/events.h"
#include "node/figures.h"
#include "node/services.h"

static const char usage[] =
    "tarn-node --master tarn://HOST:PORT --segment SIZE [options]\n"
    "\n"
    "Lends memory and disks of this machine to that master's pool. Give options as --name "
    "value or --name=value.\n"
    "\n"
    "The most used options and their defaults:\n"
    "\n"
    "  --master URL              tarn://[user[:password]@]host[:port], with TLS tarns:// "
    "(required)\n"
    "  --segment SIZE            memory to lend, such as 8gb or 8gb@numa0; may be repeated "
    "(none)\n"
    "  --name NAME               the node's name, unique in the pool (machine name and process "
    "id)\n"
    "  --ssd PATH:SIZE           a directory, file or device for copies of objects: "
    "/var/lib/tarn:100gb (none)\n"
    "  --file PATH:SIZE          a directory of a shared file system that every client can "
    "read (none)\n"
    "  --host-name NAME          this machine's name: two replicas of an object never share a "
    "machine (gethostname)\n"
    "  --bind ADDRESS            where the data port listens; may be repeated (all addresses)\n"
    "  --data-port PORT          the port for the bytes of blocks (0: any free one)\n"
    "  --announce HOST[:PORT]    where clients reach the data port (the address that the "
    "master sees)\n"
    "  --log-file FILE           the log, reopened at SIGHUP (standard output)\n"
    "\n"
    "Other options:\n"
    "\n"
    "  --segment SIZE,path=FILE  keeps its bytes in FILE (tmpfs, hugetlbfs, a disk) across "
    "restarts\n"
    "  --segment SIZE,huge       in huge pages if there are any\n"
    "  --shrink                  cut a FILE with a larger segment to SIZE (refused); a smaller "
    "one always grows\n"
    "  --ssd PATH:SIZE,create    create a missing file (refused); --file PATH:SIZE,create a "
    "directory\n"
    "  --file-perm MODE          permissions of --file's files (600); 644 for clients that run "
    "as other users\n"
    "  --rack LABEL              this machine's rack, to prefer near replicas (none)\n"
    "  --user NAME               the user to log in as (default), with --password-file or "
    "TARN_PASSWORD\n"
    "  --password-file FILE      a file whose first line is the password\n"
    "  --tls-data                the data port speaks TLS only; needs a tarns:// URL (no)\n"
    "  --tls-cert-file FILE      its certificate, and --tls-key-file FILE (those of the URL); "
    "also of modules' ports\n"
    "  --tls-ca-cert-file FILE   authorities for clients' certificates, or --tls-ca-cert-dir "
    "DIRECTORY (those of the URL)\n"
    "  --tls-auth-clients WORD   must clients show one: yes, optional, no (yes)\n"
    "  --shm-socket PATH         socket for clients on this machine; none: no shared memory "
    "(in the runtime directory)\n"
    "  --shm-perm MODE           its permissions (600)\n"
    "  --threads N               data threads (2)\n"
    "  --max-connections N       connections of the data port (4096)\n"
    "  --copies N                replicas this node makes at a time (4)\n"
    "  --queue SIZE              bytes that can wait for --ssd, and for --file (256mb)\n"
    "  --lend-interval SECONDS   of several masters: a chunk of memory moves to who needs it so "
    "often "
    "(30)\n"
    "  --no-populate             do not touch all memory at the start\n"
    "  --loadmodule FILE [WORD ...]\n"
    "                            for example modules/rdma.so bind 10.0.0.7; may be repeated\n"
    "  --daemonize               run in the background; the command returns when the node is up\n"
    "  --port-file FILE          gets the data port's number when the node is up\n"
    "  --pid-file FILE           gets the process id when the node is up\n"
    "  --log-level LEVEL         debug, verbose, notice, warning, nothing (notice)\n"
    "  --drain-on-exit           at SIGTERM or SIGINT: move objects that only this node has to "
    "others, then exit\n"
    "  --exit-timeout SECONDS    how long to wait for readers when leaving (15)\n"
    "  --help, --version\n"
    "\n"
    "SIGTERM and SIGINT stop it cleanly: with a FILE, --ssd or --file it stops at once, and a "
    "restart finds everything\n"
    "again; otherwise it leaves the pool, and objects that only it had are lost (see "
    "--drain-on-exit). A second signal\n"
    "ends it on the spot. NODE DRAIN and NODE LEAVE end it too.\n"
    "\n"
    "Exit status: 0 stopped cleanly, 1 could not start (the message says why), 2 bad command "
    "line, 3 another node has that\n"
    "name, 4 user, password or certificate refused.\n"
    "\n"
    "docs/NODES.md explains nodes, disks and shared file systems, docs/TLS.md the --tls "
    "options, docs/RDMA.md the module.\n";

/* --- set-up --- */

static bool set_up_log(const struct node_options *o) {
    tarn_set_log(NULL, NULL); /* the library's own way of logging is taken back: */
    log_set_sink(NULL, NULL); /* this is a program of its own */
    log_set_role('N');
    log_keep(MODULE_EVENTS_KEPT);
    log_set_level(o->log_level);
    if (log_open(o->log_file)) return true;
    fprintf(stderr, "tarn-node: --log-file %s: %s\n", o->log_file, strerror(errno));
    return false;
}

/* The library would choose one as well, but we want to say it. */
static void choose_name(struct node_options *o, char *name, size_t size) {
    char machine[33] = "";
    if (o->host.name != NULL) return;
    gethostname(machine, sizeof(machine) - 1);
    for (char *c = machine; *c != '\0'; c++)
        if (strchr("/:@ ", *c) != NULL) *c = '-';
    snprintf(name, size, "%s-%ld", machine, (long)getpid());
    o->host.name = name;
}

static void raise_descriptors(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static bool load_modules(const struct node_options *o) {
    char error[MODULE_ERROR_SIZE];
    for (size_t i = 0; i < o->modules; i++) {
        const struct node_module *m = &o->module[i];
        if (module_load(m->path, m->words, (const char *const *)m->word, error, sizeof(error)) ==
            TARN_OK)
            continue;
        fprintf(stderr, "tarn-node: --loadmodule %s\n", error);
        return false;
    }
    return true;
}

/* Modules are there before the host, which then serves by their transports, and go after it. */
static void run_loop(const struct node_options *o, struct node_life *l) {
    if (!services_open(l))
        fprintf(stderr, "tarn-node: the event loop could not be set up\n");
    else if (load_modules(o) && !life_start(l))
        fprintf(stderr, "tarn-node: cannot start a thread: %s\n", strerror(errno));
    else if (l->runs)
        services_run(l);
}

static int node_run(struct node_options *o) {
    char why[512], name[64];
    struct node_life life;
    if (!node_options_password(o, getenv("TARN_PASSWORD"), why, sizeof(why))) {
        fprintf(stderr, "tarn-node: %s\n", why);
        return EXIT_USAGE;
    }
    if (!set_up_log(o)) return EXIT_USAGE;
    if (o->daemonize && !daemon_begin(o->log_file)) {
        fprintf(stderr, "tarn-node: --daemonize: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    raise_descriptors();
    node_figures_begin();
    choose_name(o, name, sizeof(name));
    log_notice("tarn-node " TARN_VERSION " starting, PID: %ld", (long)getpid());
    struct hosting_view *view = hosting_view_create();
    if (life_init(&life, o, view))
        run_loop(o, &life);
    else
        fprintf(stderr, "tarn-node: a pipe or an eventfd: %s\n", strerror(errno));
    int code = life_end(&life);
    module_unload_all();
    services_close();
    hosting_view_destroy(&view);
    return code;
}

int main(int argc, char **argv) {
    struct node_options o = {0};
    char why[512];
    setlocale(LC_ALL, "C");
    file_fill_standard();
    signal(SIGPIPE, SIG_IGN);
    int code = EXIT_DONE;
    if (!node_options_parse(&o, argc - 1, argv + 1, why, sizeof(why))) {
        fprintf(stderr, "tarn-node: %s\n", why);
        code = EXIT_USAGE;
    } else if (o.help) {
        fputs(usage, stdout);
    } else if (o.version) {
        printf("tarn-node v=" TARN_VERSION "\n");
    } else {
        code = node_run(&o);
    }
    node_options_free(&o);
    return code;
}
