/* Figures as JSON: an object of INFO's sections, in which groups of one kind are an array.
 *
 *   {"server":{"tarn_version":"0.1.0",...},"pool":{"pool_size":67108864,
 *    "segment":[{"segment":"0","name":"embedded",...}]}}
 *
 * Numbers are numbers, in the units of INFO; -1 is "never" as there. Histograms in milliseconds
 * that stand alone are objects:
 *
 *   "asked_again":{"count":7,"p50":1200,"p90":...,"p99":...,"upto":[[1000,2],[10000,5],...]}
 *
 * where of all values so many were so large or less; others are left out. */
#ifndef TARN_HTTP_INFO_JSON_H
#define TARN_HTTP_INFO_JSON_H

#include "base/buf.h"
#include "base/figures.h"

#define INFO_JSON_SECTIONS 64u
#define INFO_JSON_GROUPS   8u /* kinds of them in a section; more are left out */

struct info_json_section {
    char name[32];
    struct buf fields;
    struct info_json_groups {
        char name[32];
        struct buf items;
    } groups[INFO_JSON_GROUPS];
};

struct info_json {
    struct figure_walk walk;
    struct info_json_section section[INFO_JSON_SECTIONS];
    unsigned n, written;
    struct info_json_section part; /* what was walked, and belongs to a section that is not known */
    struct buf *group;             /* of the part: the group that is open */
    bool first_field;
    size_t rows; /* groups that were begun */
};

void info_json_init(struct info_json *j);
void info_json_deinit(struct info_json *j);
/* For the next part. section: that of the part before, which goes there; NULL: there was none. */
struct figure_walk *info_json_walk(struct info_json *j, const char *section);
/* Appends the next section. false: that was all. */
bool info_json_write(struct info_json *j, struct buf *out);
/* Appends the groups that were walked, be they of whatever kind, without what surrounds them, and
 * forgets them: {...},{...}. comma: something is there before them. Returns how many they are. */
size_t info_json_rows(struct info_json *j, struct buf *out, bool comma);

#endif
