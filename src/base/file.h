/* Files that are made, and who has locked one. */
#ifndef TARN_BASE_FILE_H
#define TARN_BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include "base/buf.h"

/* A new file to write, as one is before it is renamed to what it shall be: nobody else has it open,
 * and no link leads elsewhere. What a former process has left under that name goes. mode: less the
 * umask. -1 and errno. */
int file_open_new(const char *path, mode_t mode);

/* Appends all that is left of it; at most about max bytes (EFBIG). false: errno. */
bool file_read_all(FILE *f, size_t max, struct buf *text);

/* Exactly size bytes at that offset. 0, or an errno; EIO: the file ends before. */
int file_read_at(int fd, void *to, uint64_t size, uint64_t offset);

/* Before anything is opened: standard input, output and error that were closed become /dev/null, so
 * that no file or socket gets their numbers and with them what is printed. */
void file_fill_standard(void);

/* A file of one line, a process id or a port: there whole or not at all. false: it was logged. */
bool file_write_number(const char *path, long number);
/* Unless another process has written its own by now. */
void file_unlink_number(const char *path, long number);

/* Which start of the machine this is: 36 characters and zeroes; only zeroes: unknown. */
void file_boot_id(char out[40]);

/* Takes the file's lock (flock), which a process that is about to end may still hold for a moment.
 * false: errno; EWOULDBLOCK: another process has it. */
bool file_lock(int fd, unsigned patience_ms);
/* The process that holds a lock (flock) on the file; 0: none that can be seen from here. */
pid_t file_lock_holder(int fd);
/* " (pid 17)", or "". */
const char *file_holder_text(int fd);

#endif
