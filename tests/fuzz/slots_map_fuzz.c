/* Slot maps: any bytes are refused, or read as a map whose text is read as the same. */
#include <stdint.h>

#include "base/assert.h"
#include "slots/map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[SLOT_MAP_ERROR_SIZE];
    struct buf text = {NULL, 0, 0}, again = {NULL, 0, 0};
    struct slot_map *m = slot_map_read(span_of(data, size), error);
    if (m == NULL) return 0;
    slot_map_write(m, &text);
    struct slot_map *same = slot_map_read(span_of(text.data, text.len), error);
    TARN_ASSERT(same != NULL); /* canonical is never longer than what was read */
    slot_map_write(same, &again);
    TARN_ASSERT(span_eq(span_of(text.data, text.len), span_of(again.data, again.len)));
    TARN_ASSERT(slot_map_same_slots(m, same) && !slot_map_merge(m, same));
    buf_free(&text);
    buf_free(&again);
    slot_map_destroy(&m);
    slot_map_destroy(&same);
    return 0;
}
