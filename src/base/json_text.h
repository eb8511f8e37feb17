/* Texts as JSON has them. */
#ifndef TARN_BASE_JSON_TEXT_H
#define TARN_BASE_JSON_TEXT_H

#include "base/buf.h"

/* Appends the text in quotes, escaped where RFC 8259 asks for it. Each byte that is not UTF-8
 * becomes U+FFFD, so that what is written can be read, wherever the text came from. */
void json_text_put(struct buf *out, struct span text);

#endif
