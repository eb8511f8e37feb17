/* What replicas of tarn 0.1 are told. Their offsets must be everybody's, so in place of a record
 * that they do not know (persist_kind_in_0_1) they get one of the same length that changes nothing:
 * the end of a node whose name no node can have. */
#ifndef TARN_HA_OLDER_H
#define TARN_HA_OLDER_H

#include <stdbool.h>
#include <stddef.h>

/* In place: whole records; whole commands of the stream. false: they are not, and may be changed in
 * part. */
bool older_records(char *records, size_t len);
bool older_commands(char *commands, size_t len);

#endif
