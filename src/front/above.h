/* What connections and commands ask of the rooms above theirs: roles, files, values on their way to
 * the pool. Whoever puts the server together fills this in, before the first client; every pointer
 * is set. So it is seen in one place what is asked upwards, and nothing below includes it. */
#ifndef TARN_FRONT_ABOVE_H
#define TARN_FRONT_ABOVE_H

#include <sys/uio.h>
#include "base/figures.h"
#include "front/cmd.h"
#include "module.h"

#define BIG_PIECES 8u

struct above {
    const cmd_fn *functions; /* of commands, by enum wire_id: table_init */

    /* Is anything refused by the role of this server, its replicas, or by what is there of the
     * books? Only then the next two are asked. */
    bool (*restricts)(void);
    /* Why c may not run cmd now: the text of an error (static). NULL: it may. */
    const char *(*refusal)(const struct client *c, const struct cmd *cmd);
    /* Is it an in-band value that is refused because its node is awaited, or the pool populated? */
    bool (*is_early)(const struct client *c, const struct cmd *cmd);
    /* What is refused may be worth waiting for. true: a job waits, and runs the command then. */
    bool (*wait)(struct client *c, const struct cmd *cmd);
    /* Why no command may change anything, because of the files ("MISCONF ..."). NULL: it may. */
    const char *(*write_refusal)(void);
    /* ... because the pool is populated, or of too few replicas ("-NOREPLICAS ..."). refusal() says
     * that, too. */
    const char *(*master_refusal)(void);
    /* Why what has just been changed must not be answered OK; NULL: its records are where they
     * belong. */
    const char *(*unwritten)(void);

    /* Whom this server follows, and the port (port_p may be NULL). NULL: nobody, it leads. */
    const char *(*master)(uint16_t *port_p);

    /* Of a client that is a replica, or has said REPLCONF: it goes; some of what it was told has
     * left. */
    void (*replica_gone)(struct client *c);
    void (*replica_drained)(struct client *c);

    /* For modules: module.h. */
    bool (*figures_next)(struct tarn_figures_at *at, struct figure_walk *walk);
    enum tarn_state (*state)(char *text, size_t cap);
    enum tarn_rows (*rows_next)(const char *table, uint64_t *from, struct figure_walk *walk);

    /* Whether anybody wants news of the books has changed. */
    void (*relisten)(void);

    /* An argument of 32 KiB or more is read from the socket straight to where it will stay.
     *
     *   big_begin ─> big_next, read, big_filled ─> ... ─> the command runs with c->big ─> taken
     *     └── client dies or its request is malformed: big_abort                       or aborted
     *
     * There is at most one sink per command; the client reads every other large argument into
     * memory of its own. When the command runs, argv[] of the argument has data NULL and len
     * big_len: all its bytes were filled. The command takes the sink by setting c->big to NULL,
     * also where it then answers an error (and aborts the sink itself); a sink that is still there
     * when the command returns (wrong arity, NOAUTH, a job that is over) is aborted by the
     * framework.
     *
     * argv[0 .. argc_so_far) are the arguments before it (argv[0] is the name), valid during the
     * call only. NULL: no room in the pool at once, or not a command for this: the bytes go to
     * memory of the client. Answers nothing. */
    struct value_write *(*big_begin)(struct client *c, const struct span *argv, size_t argc_so_far,
                                     size_t big_len);
    /* Called before each read: where the next bytes belong, at most BIG_PIECES pieces, returns how
     * many (> 0 as long as bytes are missing). The sink may point elsewhere than before, for
     * example to a scratch area once its put was superseded. */
    size_t (*big_next)(const struct value_write *sink, struct iovec iov[BIG_PIECES]);
    /* The next n bytes have arrived there, in order. In any thread, as long as nobody else has to
     * do with the sink. */
    void (*big_filled)(struct value_write *sink, size_t n);
    /* Gives its space back. */
    void (*big_abort)(struct value_write *sink);
};
extern struct above above;

#endif
