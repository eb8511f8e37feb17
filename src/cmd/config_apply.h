/* For the rows of the configuration: struct config_row, apply. */
#ifndef TARN_CMD_CONFIG_APPLY_H
#define TARN_CMD_CONFIG_APPLY_H

#include <stdbool.h>

bool apply_dir(const char **why_p);
bool apply_title(const char **why_p);
bool apply_oom_score(const char **why_p);
bool apply_crash_log(const char **why_p);
bool apply_bg_thread(const char **why_p);
bool apply_source(const char **why_p);
bool apply_maxmemory_clients(const char **why_p);

#endif
