#include "conductor/asked.h"

#include <string.h>

static struct asked all[ASKED_MAX];
static size_t count;

static bool asked_is(const struct asked *a, struct span model, struct span lora, struct span salt) {
    return span_eq(span_str(a->model), model) && span_eq(span_str(a->lora), lora) &&
           span_eq(span_str(a->salt), salt);
}

struct asked *asked_get(struct span model, struct span lora, struct span salt, uint64_t now_us) {
    struct asked *a = NULL;
    for (size_t i = 0; i < count && a == NULL; i++)
        if (asked_is(&all[i], model, lora, salt)) a = &all[i];
    if (a == NULL) {
        size_t oldest = 0;
        for (size_t i = 1; i < count; i++)
            if (all[i].at_us < all[oldest].at_us) oldest = i;
        a = &all[count < ASKED_MAX ? count++ : oldest];
        memset(a, 0, sizeof(*a));
        span_to_text(model, a->model, sizeof(a->model));
        span_to_text(lora, a->lora, sizeof(a->lora));
        span_to_text(salt, a->salt, sizeof(a->salt));
    }
    a->at_us = now_us;
    return a;
}

const struct asked *asked_at(size_t i) {
    return i < count ? &all[i] : NULL;
}

void asked_clear(void) {
    count = 0;
}
