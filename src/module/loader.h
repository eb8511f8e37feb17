/* Modules of this process: their files are opened and looked at before anything of theirs is
 * called, what they register is written down, and all of it is taken back when they go. What a
 * module is: ../module.h.
 *
 *   module_load ─> file looked at ─> opened ─> struct looked at ─> load()
 *     ├─ TARN_OK ─> transports registered ─> loaded
 *     └─ else ────> commands, HTTP paths taken back, closed
 *   module_unload ─> transports taken back ─> unload()
 *     ├─ TARN_OK ────> commands, HTTP paths taken back, closed
 *     └─ TARN_EBUSY ─> transports registered again: loaded as before
 *
 * Threads: everything from any thread. One mutex serves all of it and is held while load, unload,
 * info and the hooks run, so none of these may call back into this room. */
#ifndef TARN_MODULE_LOADER_H
#define TARN_MODULE_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include "base/figures.h"
#include "module.h"

#define MODULES_MAX           16u
#define MODULE_WORDS_MAX      64u /* arguments of one module */
#define MODULE_WORD_MAX       1024u
#define MODULE_NAME_MAX       32u
#define MODULE_COMMANDS_MAX   32u /* of one module */
#define MODULE_TRANSPORTS_MAX 4u
#define MODULE_ERROR_SIZE     1024u

/* What the program does when modules come and go; any of them may be NULL. */
struct module_hooks {
    /* A command, while its module loads; the struct is the loader's, of this program's size, and
     * stays until it is removed. TARN_EEXISTS, TARN_EINVAL, TARN_ELIMIT. NULL: this program has no
     * commands. */
    tarn_status (*command_add)(const char *module, const struct tarn_command_declaration *command);
    void (*command_remove)(const struct tarn_command_declaration *command);
    /* Where it keeps what is to last, while it loads. NULL: this program keeps nothing. */
    tarn_status (*durable_open)(const char *module, struct tarn_durable **durable_p);
    /* After it is registered, and before it is taken back: whoever has a domain of it must have
     * closed it then. */
    void (*transport_added)(const char *scheme);
    void (*transport_removing)(const char *scheme);
};

/* Once per process, before the first module: who comes later (a library inside a program that has
 * its own modules) gets false, and nothing changes. services is copied; size, version,
 * program_version and what registers something are filled in here, log too when it is NULL
 * (base/log.h). hooks (NULL: none) stays borrowed. */
bool module_init(const struct tarn_services *services, const struct module_hooks *hooks);

/* Loads a file, with the words behind its name. Anything but TARN_OK: error is a sentence that
 * names the file, and nothing of it is left. TARN_EEXISTS: a module of that name is loaded.
 * TARN_EPROTO: versions or interfaces do not fit. TARN_EINVAL: no module; else what load() said. */
tarn_status module_load(const char *path, size_t argc, const char *const *argv, char *error,
                        size_t error_cap);
/* TARN_ENOTFOUND: no such module. TARN_ENOTSUP: it cannot be unloaded. TARN_EBUSY: somebody uses
 * it; error is the module's text. */
tarn_status module_unload(const char *name, char *error, size_t error_cap);
/* At the end of the program, the last one first. One that says it is busy stays, and is logged. */
void module_unload_all(void);
bool module_loaded(const char *name);

struct module_info {
    const char *name, *version, *summary;
    unsigned version_number; /* 10203 for "1.2.3", as Redis' modules count; 0: not of that form */
    const char *path;        /* as it was given */
    size_t argc;
    const char *const *argv;
    unsigned transports, commands; /* how many it brought */
    /* The module's own fields; NULL: none. */
    void (*fields)(void (*field)(void *arg, const char *name, const char *value), void *arg);
    void (*figures)(struct figure_walk *walk); /* likewise */
};
/* In the order in which they were loaded. Borrowed for the call; fn returns false to stop. */
void module_each(bool (*fn)(void *arg, const struct module_info *info), void *arg);

/* To the module of that name, if it is loaded and wants to know; module without bytes: to all. What
 * struct tarn_module has of that name. */
void module_tell_durable(struct span module, const struct span *name, const struct span *value);
void module_tell_role(bool leads);

/* --- figures.c --- */

/* INFO modules: all there are, with what each says of itself. */
void module_figures(struct figure_walk *walk);

/* --- path.c --- */

/* What a user calls a module, as a whole path (free it): a name without "/" is looked for in the
 * directories below, so that no file of that name that lies about is taken for it; else, and where
 * it is in none, the path counts from the directory where the process is. Nothing found: as it was
 * given, so that who loads it says why. */
char *module_path(const char *given);

/* fn says true when it has found what it looks for, and is asked no more. */
typedef bool (*module_directory_fn)(void *arg, const char *directory, size_t len);
/* Where modules are: TARN_MODULE_PATH, beside this program or library, where `make install` puts
 * them. */
bool module_directories(module_directory_fn fn, void *arg);
/* "DIR:DIR" */
bool module_directories_of(const char *list, module_directory_fn fn, void *arg);

/* --- file.c --- */

/* Is it a shared object for this machine, and whole? The dynamic linker dies of some that are not.
 * false: error has a sentence. */
bool module_file_check(const char *path, char *error, size_t error_cap);

#endif
