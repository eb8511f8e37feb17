#include "host/place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/htab.h"
#include "base/log.h"

#define DIR_MAX 80u /* of a folder; behind it there is room for "/" and a hashed name */
#define WHY_MAX 256u

struct place {
    char dir[DIR_MAX];
    char why[WHY_MAX]; /* the last one that there is cannot be used; "" */
};

static bool place_refuse(struct place *p, const char *dir, const char *why) {
    snprintf(p->why, sizeof(p->why), "%.80s %s", dir, why);
    return false;
}

/* Nobody but its owner and root makes, renames and removes what is in it. */
static bool is_safe(struct place *p, const char *dir, mode_t others) {
    struct stat st;
    if (lstat(dir, &st) != 0)
        return errno == ENOENT ? false : place_refuse(p, dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return place_refuse(p, dir, S_ISLNK(st.st_mode) ? "is a link" : "is no folder");
    if (st.st_uid != geteuid()) return place_refuse(p, dir, "belongs to another user");
    if ((st.st_mode & others) != 0) return place_refuse(p, dir, "is open to other users: chmod it");
    return true;
}

/* Of the folders in a list with ":" the first. */
static bool place_use(struct place *p, const char *list, mode_t others) {
    size_t len = list == NULL ? 0 : strcspn(list, ":");
    if (len == 0 || list[0] != '/') return false;
    if (len >= sizeof(p->dir)) return place_refuse(p, list, "is too long for the path of a socket");
    memcpy(p->dir, list, len);
    p->dir[len] = '\0';
    return is_safe(p, p->dir, others);
}

/* mkdir follows no link, and what is there already is looked at. */
static bool place_make(struct place *p, const char *dir, mode_t mode, mode_t others) {
    bool made = mkdir(dir, mode) == 0;
    if (!made && errno != EEXIST) return place_refuse(p, dir, strerror(errno));
    /* what the umask took comes back */
    return place_use(p, dir, others) && (!made || chmod(dir, mode) == 0);
}

static bool make_private(struct place *p) {
    const char *tmp = getenv("TMPDIR");
    char dir[DIR_MAX];
    struct stat st;
    if (tmp == NULL || tmp[0] != '/' || strchr(tmp, ':') != NULL) tmp = "/tmp";
    if (stat(tmp, &st) == 0 && (st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0)
        return place_refuse(p, tmp, "lets everybody rename what others have there: chmod +t");
    if (snprintf(dir, sizeof(dir), "%s/tarn-%u", tmp, (unsigned)geteuid()) >= (int)sizeof(dir))
        return place_refuse(p, tmp, "is too long for the path of a socket");
    return place_make(p, dir, 0700, 077);
}

static bool place_find(struct place *p) {
    static const char system[] = "/run/tarn";
    return place_use(p, getenv("RUNTIME_DIRECTORY"), 022) ||
           (geteuid() == 0 ? place_make(p, system, 0755, 022) : place_use(p, system, 022)) ||
           place_use(p, getenv("XDG_RUNTIME_DIR"), 022) || make_private(p);
}

bool host_socket_path(const char *name, char out[HOST_SOCKET_MAX]) {
    struct place p = {.why = ""};
    if (!place_find(&p)) {
        log_warning("There is no shared memory for clients on this machine, for there is no safe "
                    "folder for "
                    "its socket: %s. "
                    "Say where it may be (shm-socket), or that there shall be none",
                    p.why);
        return false;
    }
    if (snprintf(out, HOST_SOCKET_MAX, "%s/%s", p.dir, name) >= (int)HOST_SOCKET_MAX)
        snprintf(out, HOST_SOCKET_MAX, "%s/%016llx.sock", p.dir,
                 (unsigned long long)hash_bytes(name, strlen(name)));
    return true;
}
