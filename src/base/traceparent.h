/* Trace contexts as W3C Trace Context (level 2, https://www.w3.org/TR/trace-context-2/) writes them
 * into the header traceparent: 00-TRACE ID (32 hex digits)-SPAN ID (16)-FLAGS (2). */
#ifndef TARN_BASE_TRACEPARENT_H
#define TARN_BASE_TRACEPARENT_H

#include <stdbool.h>

#include "base/buf.h"

#define TRACEPARENT_LEN 55u /* of version 00 */

struct traceparent {
    char text[TRACEPARENT_LEN + 1]; /* of version 00, in small letters; "": none */
};
enum { TRACEPARENT_TRACE = 3, TRACEPARENT_SPAN = 36, TRACEPARENT_FLAGS = 53 }; /* where in text */
#define TRACEPARENT_FORM "00-TRACE-SPAN-FLAGS of 2, 32, 16 and 2 small hex digits, ids not all zero"

/* Reads one. Of a later version as its text says it is to be read: what follows the flags is left
 * out, and what we write is of version 00. false: it is none, and *p is undefined. */
bool traceparent_read(struct span text, struct traceparent *p);

/* Is its trace recorded by those who came before? */
static inline bool traceparent_is_sampled(const struct traceparent *p) {
    char last = p->text[TRACEPARENT_FLAGS + 1];
    return ((last >= 'a' ? last - 'a' + 10 : last - '0') & 1) != 0;
}

#endif
