/* tarn-node: a storage node, which lends this machine's memory and disks to the pool of a master.
 * Little more than tarn_host_open and tarn_host_close; see ../tarn.h. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/daemon.h"
#include "base/file.h"
#include "node/options.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NAME_TAKEN = 3, EXIT_PASSWORD = 4 };

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
    "  --tls-cert-file FILE      its certificate, and --tls-key-file FILE (those of the URL)\n"
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

/* --- signals --- */

static int pipe_fd[2] = {-1, -1};
static volatile sig_atomic_t endings;

/* 't': end, 'h': open the log again, and read the files of TLS. */
static void note_signal(int signo) {
    int saved = errno;
    if (signo != SIGHUP && ++endings > 1) _exit(128 + signo);
    if (write(pipe_fd[1], signo == SIGHUP ? "h" : "t", 1) < 0) errno = 0; /* full: it knows */
    errno = saved;
}

static void catch_signal(int signo) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signo, &action, NULL);
}

/* What came within ms: 't', 'h' or 0. */
static char next_signal(int ms) {
    char c = 0;
    struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
    if (poll(&p, 1, ms) > 0 && read(pipe_fd[0], &c, 1) != 1) c = 0;
    return c;
}

/* --- set-up --- */

static bool set_up_log(const struct node_options *o) {
    tarn_set_log(NULL, NULL); /* the library's own way of logging is taken back: */
    log_set_sink(NULL, NULL); /* this is a program of its own */
    log_set_role('N');
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

static bool may_come(tarn_status status) {
    return status == TARN_EIO || status == TARN_ETIMEOUT || status == TARN_ECLOSED ||
           status == TARN_ELOADING || status == TARN_ELIMIT;
}

/* A node may be started before its master, so this waits for it. */
static tarn_status wait_for_master(const struct node_options *o) {
    bool told = false;
    for (;;) {
        tarn_client *client = NULL;
        tarn_status status = tarn_connect(o->master, &o->client, &client);
        tarn_close(&client);
        if (!may_come(status)) return status;
        if (!told) log_warning("Waiting for the master: %s", tarn_last_error());
        told = true;
        if (next_signal(500) == 'h' && o->log_file != NULL)
            log_open(o->log_file); /* of TLS nothing is kept yet */
    }
}

/* The master may also go while we join. Some of these statuses have causes here, too, which do not
 * pass. */
static tarn_status open_host(const struct node_options *o, tarn_host **host_p) {
    tarn_status status = TARN_EIO;
    for (unsigned tries = 0; tries < 3 && may_come(status); tries++) {
        status = wait_for_master(o);
        if (status == TARN_OK) status = tarn_host_open(o->master, &o->client, &o->host, host_p);
    }
    return status;
}

static int node_failed(tarn_status status) {
    const char *advice = "";
    if (status == TARN_EBUSY) advice = " (--name)";
    if (status == TARN_EEXISTS)
        advice = " (--shrink; NODE DRAIN first moves to others what is only there)";
    if (status == TARN_EPERM) advice = " (--user, --password-file)";
    fprintf(stderr, "tarn-node: %s%s\n", tarn_last_error(), advice);
    return status == TARN_EBUSY   ? EXIT_NAME_TAKEN
           : status == TARN_EPERM ? EXIT_PASSWORD
                                  : EXIT_FAILED;
}

/* --- life --- */

static void say_up(const struct node_options *o, tarn_host *host) {
    tarn_host_info info = {.size = sizeof(info)};
    if (tarn_host_get_info(host, &info) != TARN_OK) return;
    printf("tarn-node %s is up: %llu segments of memory, %llu MiB%s%s, data port %u\n",
           o->host.name != NULL ? o->host.name : "(named by machine and pid)",
           (unsigned long long)info.segments, (unsigned long long)(info.bytes >> 20),
           o->host.ssd_path != NULL ? ", ssd" : "", o->host.file_path != NULL ? ", file" : "",
           info.data_port);
    fflush(stdout);
    if (o->port_file != NULL) file_write_number(o->port_file, info.data_port);
    if (o->pid_file != NULL) file_write_number(o->pid_file, (long)getpid());
}

/* What it says of TLS is in the log. */
static void read_files_again(const struct node_options *o, tarn_host *host) {
    if (o->log_file != NULL) log_open(o->log_file);
    (void)tarn_host_reload_tls(host);
}

/* Until it is to end: by a signal, or because it has left. */
static int node_live(const struct node_options *o, tarn_host **host_p) {
    bool leaving = false;
    for (;;) {
        char c = next_signal(200);
        if (c == 'h') read_files_again(o, *host_p);
        if (tarn_host_wait(*host_p, 0) == TARN_OK) {
            log_notice("The node has left the pool, bye bye...");
            return tarn_host_close(host_p, 0, 0) == TARN_OK ? EXIT_DONE : EXIT_FAILED;
        }
        if (c != 't' || leaving) continue;
        leaving = true;
        if (!o->drain_on_exit) break;
        log_notice("Received a signal: what is only here is moved to other nodes; a second signal "
                   "ends at once");
        tarn_host_drain(*host_p);
    }
    log_notice(o->keeps ? "Received a signal: going away, a restart finds everything again"
                        : "Received a signal: leaving the pool");
    return tarn_host_close(host_p, o->keeps, o->exit_timeout_ms) == TARN_OK ? EXIT_DONE
                                                                            : EXIT_FAILED;
}

static bool load_modules(const struct node_options *o) {
    static const struct tarn_services services = {.program = TARN_PROGRAM_NODE};
    char error[MODULE_ERROR_SIZE];
    (void)module_init(&services, NULL); /* the only one in this process */
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

static int node_run(struct node_options *o) {
    char why[512], name[64];
    tarn_host *host = NULL;
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
    choose_name(o, name, sizeof(name));
    log_notice("tarn-node " TARN_VERSION " starting, PID: %ld", (long)getpid());
    if (!load_modules(o)) return EXIT_FAILED;
    if (pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) != 0) {
        fprintf(stderr, "tarn-node: pipe2: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    catch_signal(SIGHUP);
    tarn_status status = open_host(o, &host);
    if (status != TARN_OK) return node_failed(status);
    /* Until now these end the process, with which nothing is lost. */
    catch_signal(SIGTERM);
    catch_signal(SIGINT);
    say_up(o, host);
    daemon_ready();
    int code = node_live(o, &host);
    if (o->port_file != NULL) unlink(o->port_file);
    if (o->pid_file != NULL) file_unlink_number(o->pid_file, (long)getpid());
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
        module_unload_all();
    }
    node_options_free(&o);
    return code;
}
