/* tarn-server [FILE | -] [--option value ...] */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "front/process.h"
#include "server/server.h"

int main(int argc, char **argv) {
    struct config values;
    char *why = NULL;
    setlocale(LC_ALL, "C");
    file_fill_standard();
    if (argc == 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0)) {
        printf("tarn-server v=" TARN_VERSION " redis_version=7.0.15 bits=%zu\n",
               8 * sizeof(void *));
        return 0;
    }
    bool all = argc == 3 && strcmp(argv[2], "all") == 0;
    if ((argc == 2 || all) && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help(argv[0], all);
        return 0;
    }
    process_title_init(argc, argv);
    config_init(&values);
    if (!config_load_args(&values, argc - 1, argv + 1, &why) || !config_validate(&values, &why)) {
        fprintf(stderr, "tarn-server: configuration error%s%s\n",
                strchr(why, '\n') != NULL ? "s:\n" : ": ", why);
        free(why);
        config_deinit(&values);
        return 1;
    }
    int status = server_run(&values, argv[0]);
    config_deinit(&values);
    return status;
}
