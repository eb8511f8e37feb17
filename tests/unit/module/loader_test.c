/* The loader against small modules, good and bad (tests/modules). One process, one list: each test
 * leaves nothing loaded. */
#include "../test.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "module/loader.h"
#include "transport/transport.h"

static char error[MODULE_ERROR_SIZE], added[512], scheme_added[64], scheme_removing[64];
static unsigned n_added;
static tarn_status add_answer;

static tarn_status command_add(const char *module, const struct tarn_command_declaration *command) {
    if (add_answer != TARN_OK) return add_answer;
    if (strstr(added, command->name) != NULL) return TARN_EEXISTS;
    if (strchr(command->syntax, '[') != NULL && strchr(command->syntax, ']') == NULL)
        return TARN_EINVAL;
    snprintf(added + strlen(added), sizeof(added) - strlen(added), "%s ", command->name);
    n_added++;
    return TARN_OK;
}

static void command_remove(const struct tarn_command_declaration *command) {
    char *at = strstr(added, command->name);
    CHECK(at != NULL);
    size_t len = strlen(command->name) + 1;
    memmove(at, at + len, strlen(at + len) + 1);
    n_added--;
}

static void transport_added(const char *scheme) {
    CHECK(transport_find(scheme) != NULL);
    snprintf(scheme_added, sizeof(scheme_added), "%s", scheme);
}

static void transport_removing(const char *scheme) {
    CHECK(transport_find(scheme) != NULL);
    snprintf(scheme_removing, sizeof(scheme_removing), "%s", scheme);
}

static void start(void) {
    static const struct tarn_services services = {.program = TARN_PROGRAM_SERVER};
    static const struct module_hooks hooks = {.command_add = command_add,
                                              .command_remove = command_remove,
                                              .transport_added = transport_added,
                                              .transport_removing = transport_removing};
    static bool first = true;
    log_set_level(LOG_LEVEL_NOTHING);
    CHECK_EQ(module_init(&services, &hooks), first);
    first = false;
    error[0] = scheme_added[0] = scheme_removing[0] = '\0';
    add_answer = TARN_OK;
}

/* tests/modules of this build, found from build/KIND/tests/unit/module/loader_test. */
static const char *file_of(const char *name) {
    static char path[PATH_MAX + 64];
    char self[PATH_MAX];
    CHECK(realpath("/proc/self/exe", self) != NULL);
    for (int i = 0; i < 3; i++) *strrchr(self, '/') = '\0';
    snprintf(path, sizeof(path), "%s/modules/%s.so", self, name);
    return path;
}

static tarn_status load(const char *name, const char *word) {
    return module_load(file_of(name), word != NULL, &word, error, sizeof(error));
}

static bool count_one(void *arg, const struct module_info *info) {
    ++*(size_t *)arg;
    return true;
}

static size_t count(void) {
    size_t n = 0;
    module_each(count_one, &n);
    return n;
}

/* Refused, with this in its text, and nothing of it is left. */
static void refused(const char *name, tarn_status status, const char *text) {
    size_t before = count();
    CHECK_EQ(load(name, NULL), status);
    if (strstr(error, text) == NULL || strstr(error, name) == NULL) CHECK_STR(error, text);
    CHECK_EQ(count(), before);
}

TEST(what_does_not_fit_is_told_apart) {
    start();
    refused("nosymbol", TARN_EINVAL, "does not show tarn_module_v1");
    refused("nextversion", TARN_EPROTO,
            "has version 2 of the module interface, this program wants version 1");
    refused("wrongversion", TARN_EPROTO,
            "was built for version 7 of the module interface, this program wants version 1");
    char abi[128];
    snprintf(abi, sizeof(abi), "version 99 of the transport interface, this program has version %u",
             TRANSPORT_ABI);
    refused("wrongabi", TARN_EPROTO, abi);
    refused("small", TARN_EPROTO,
            "its struct tarn_module has 24 bytes, and this program needs the first 48");
    refused("liar", TARN_EINVAL, "is smaller than it says");
    refused("function", TARN_EINVAL, "is not data");
    refused("badname", TARN_EINVAL, "no proper name");
    refused("undefined", TARN_EINVAL, "tarn_tests_nobody_has_this");
    refused("notthere", TARN_EINVAL, "No such file or directory");
    CHECK_EQ(module_load("/tmp", 0, NULL, error, sizeof(error)), TARN_EINVAL);
    CHECK_STR(error, "/tmp is no regular file");
}

TEST(structs_may_be_older_or_newer) {
    start();
    CHECK_EQ(load("newer", NULL), TARN_OK);
    CHECK_EQ(load("older", NULL), TARN_OK);
    CHECK(module_loaded("newer") && module_loaded("older"));
    CHECK_EQ(module_unload("newer", error, sizeof(error)), TARN_OK);
    CHECK_EQ(module_unload("older", error, sizeof(error)), TARN_ENOTSUP);
    CHECK_STR(error, "module older cannot be unloaded");
    CHECK_EQ(module_unload("newer", error, sizeof(error)), TARN_ENOTFOUND);
    module_unload_all();
    CHECK(!module_loaded("newer") && module_loaded("older"));
}

struct seen {
    unsigned n, version_number, transports, commands;
    size_t argc;
    char fields[256];
};

static void see_field(void *arg, const char *name, const char *value) {
    struct seen *s = arg;
    snprintf(s->fields + strlen(s->fields), sizeof(s->fields) - strlen(s->fields), "%s=%s,", name,
             value);
}

static bool see_toy(void *arg, const struct module_info *info) {
    struct seen *s = arg;
    if (strcmp(info->name, "toy") != 0) return true;
    CHECK_STR(info->version, "1.2.3");
    CHECK_STR(info->path, file_of("toy"));
    s->n++;
    s->version_number = info->version_number;
    s->transports = info->transports;
    s->commands = info->commands;
    s->argc = info->argc;
    if (info->argc > 0) CHECK_STR(info->argv[0], "hello");
    info->fields(see_field, s);
    return false;
}

TEST(a_module_comes_and_goes) {
    start();
    CHECK(transport_find("toy") == NULL);
    CHECK_EQ(load("toy", "hello"), TARN_OK);
    CHECK(transport_find("toy://x") != NULL);
    CHECK_STR(scheme_added, "toy");
    struct seen s = {0};
    module_each(see_toy, &s);
    CHECK_EQ(s.n, 1);
    CHECK_EQ(s.version_number, 10203);
    CHECK_EQ(s.transports, 1);
    CHECK_EQ(s.commands, n_added);
    CHECK(n_added >= 4 && strstr(added, "toy.words ") != NULL);
    CHECK_EQ(s.argc, 1);
    CHECK(strstr(s.fields, "domains=0,") != NULL);

    CHECK_EQ(load("toy", NULL), TARN_EEXISTS);
    CHECK(strstr(error, "a module named toy is loaded already, from ") != NULL);
    CHECK_EQ(load("twin", NULL), TARN_EEXISTS);

    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
    CHECK_STR(scheme_removing, "toy");
    CHECK(transport_find("toy") == NULL);
    CHECK_EQ(n_added, 0);
    CHECK_EQ(load("toy", NULL), TARN_OK); /* and once more */
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
}

TEST(a_failed_load_leaves_nothing) {
    start();
    CHECK_EQ(load("toy", "fail"), TARN_EINVAL);
    CHECK(strstr(error, "toy.so: the word \"fail\" makes it fail") != NULL);
    CHECK(transport_find("toy") == NULL);
    CHECK_EQ(n_added, 0);
    CHECK_STR(added, "");
    CHECK_STR(scheme_added, "");
    add_answer = TARN_EEXISTS; /* of its first command, behind the transport */
    CHECK_EQ(load("toy", NULL), TARN_EEXISTS);
    CHECK(strstr(error, tarn_status_text(TARN_EEXISTS)) != NULL); /* it had no words of its own */
    CHECK(transport_find("toy") == NULL);
    add_answer = TARN_OK;
    CHECK_EQ(load("toy", NULL), TARN_OK);
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
}

TEST(what_a_module_must_not_register) {
    start();
    /* it tries, and fails to load if something is taken */
    CHECK_EQ(load("toy", "strange"), TARN_OK);
    CHECK_STR(error, "");
    CHECK(transport_find("hollow") == NULL && transport_find("tcp") == &transport_tcp);
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
}

TEST(busy_modules_stay_as_they_were) {
    start();
    CHECK_EQ(load("toy", NULL), TARN_OK);
    unsigned commands = n_added;
    const struct transport_ops *ops = transport_find("toy");
    struct transport_domain_config config = {0};
    struct transport_domain *d;
    CHECK_EQ(ops->domain_open(&config, &d), TARN_OK);
    scheme_added[0] = '\0';
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_EBUSY);
    CHECK_STR(error, "the toy is in use: 1 domains");
    CHECK(transport_find("toy") == ops && module_loaded("toy"));
    CHECK_STR(scheme_added, "toy");
    CHECK_EQ(n_added, commands);
    module_unload_all();
    CHECK(module_loaded("toy"));
    ops->domain_close(&d);
    /* One of which the registry knows is not the module's to judge. */
    CHECK_EQ(transport_open("toy", &config, &ops, &d), TARN_OK);
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_EBUSY);
    CHECK_STR(error, "connections of this process use toy");
    CHECK_EQ(transport_unregister(ops), TARN_EBUSY);
    CHECK(transport_find("toy") == ops && module_loaded("toy"));
    transport_close(ops, &d);
    CHECK(d == NULL);
    module_unload_all();
    CHECK(!module_loaded("toy"));
    CHECK_EQ(n_added, 0);
}

TEST(words_have_bounds) {
    start();
    const char *many[MODULE_WORDS_MAX + 1];
    for (size_t i = 0; i <= MODULE_WORDS_MAX; i++) many[i] = "x";
    CHECK_EQ(module_load(file_of("toy"), MODULE_WORDS_MAX + 1, many, error, sizeof(error)),
             TARN_EINVAL);
    CHECK(strstr(error, "a module takes up to 64 words") != NULL);
    char *word = malloc(MODULE_WORD_MAX + 2);
    memset(word, 'x', MODULE_WORD_MAX + 1);
    word[MODULE_WORD_MAX + 1] = '\0';
    CHECK_EQ(load("toy", word), TARN_EINVAL);
    CHECK(strstr(error, "word 1 has more than 1024 bytes") != NULL);
    free(word);
    CHECK_EQ(module_load(file_of("toy"), MODULE_WORDS_MAX, many, error, sizeof(error)), TARN_OK);
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
}

/* --- several threads, as in a program that uses libtarn from many --- */

struct worker {
    char path[PATH_MAX + 64];
    unsigned loaded, there, wrong;
};

static bool look(void *arg, const struct module_info *info) {
    *(bool *)arg = info->name[0] != '\0' && info->path[0] != '\0';
    return true;
}

static void *work(void *arg) {
    struct worker *w = arg;
    char text[MODULE_ERROR_SIZE];
    for (int i = 0; i < 100; i++) {
        bool good = true;
        tarn_status status = module_load(w->path, 0, NULL, text, sizeof(text));
        module_each(look, &good);
        w->loaded += status == TARN_OK;
        w->there += status == TARN_EEXISTS;
        w->wrong += !good || (status != TARN_OK && status != TARN_EEXISTS);
        if (status == TARN_OK) w->wrong += module_unload("newer", text, sizeof(text)) != TARN_OK;
    }
    return NULL;
}

TEST(many_threads_and_one_list) {
    start();
    pthread_t thread[4];
    static struct worker worker[4];
    for (int i = 0; i < 4; i++) {
        worker[i] = (struct worker){.loaded = 0};
        snprintf(worker[i].path, sizeof(worker[i].path), "%s", file_of("newer"));
        CHECK_EQ(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    }
    unsigned loaded = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(worker[i].wrong, 0);
        CHECK_EQ(worker[i].loaded + worker[i].there, 100);
        loaded += worker[i].loaded;
    }
    CHECK(loaded > 0 && !module_loaded("newer"));
}

/* --- files that are none --- */

static void write_file(const char *path, const char *data, size_t len) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, data, len), (ssize_t)len);
    close(fd);
}

/* Where what the linker maps of a file ends. Behind it are section headers and symbols for
 * debuggers, little or much. */
static size_t mapped_end(const char *file) {
    Elf64_Ehdr head;
    Elf64_Phdr segment;
    size_t end = 0;
    memcpy(&head, file, sizeof(head));
    for (int i = 0; i < head.e_phnum; i++) {
        memcpy(&segment, file + head.e_phoff + (size_t)i * sizeof(segment), sizeof(segment));
        if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > end)
            end = segment.p_offset + segment.p_filesz;
    }
    return end;
}

/* Cut off anywhere it must not end the process: the dynamic linker alone would, here and there. */
TEST(damaged_files_are_refused) {
    start();
    char dir[] = "/tmp/tarn-module-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/m.so", dir);
    static char whole[1 << 20];
    int fd = open(file_of("toy"), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    ssize_t size = read(fd, whole, sizeof(whole));
    close(fd);
    CHECK(size > 4096 && size < (ssize_t)sizeof(whole));
    for (int i = 0; i < 16; i++) {
        write_file(path, whole, mapped_end(whole) * (size_t)i / 16);
        CHECK_EQ(module_load(path, 0, NULL, error, sizeof(error)), TARN_EINVAL);
        CHECK(strstr(error, "cut off") != NULL || strstr(error, "no shared object") != NULL ||
              strstr(error, "cannot be opened") != NULL);
        unlink(path);
    }
    static const char text[] = "loadmodule this\nis no module\n";
    write_file(path, text, sizeof(text) - 1);
    CHECK_EQ(module_load(path, 0, NULL, error, sizeof(error)), TARN_EINVAL);
    CHECK(strstr(error, "m.so is no shared object") != NULL);
    unlink(path);
    char kept = whole[18]; /* e_machine */
    whole[18] = (char)(kept + 1);
    write_file(path, whole, (size_t)size);
    CHECK_EQ(module_load(path, 0, NULL, error, sizeof(error)), TARN_EINVAL);
    CHECK(strstr(error, "another kind of machine") != NULL);
    unlink(path);
    CHECK_EQ(rmdir(dir), 0);
    CHECK_EQ(load("toy", NULL), TARN_OK);
    CHECK_EQ(module_unload("toy", error, sizeof(error)), TARN_OK);
}

TEST_MAIN()
