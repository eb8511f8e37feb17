/* What replicas of tarn 0.1 are told. Their offsets must be everybody's, so in place of a record
 * that they do not know (persist_kind_in_0_1) they get one of the same length that changes nothing:
 * the end of a node whose name no node can have. */
#ifndef TARN_HA_OLDER_H
#define TARN_HA_OLDER_H

#include <stddef.h>
#include "base/buf.h"

/* In place: whole records; whole commands of the stream. */
void older_records(char *records, size_t len);
void older_commands(char *commands, size_t len);

#endif
