#include "conductor/asked.h"

#include <stdio.h>
#include <string.h>

static struct asked all[ASKED_MAX];
static size_t count;

static bool asked_is(const struct asked *a, struct span model, struct span lora, struct span salt) {
    return span_eq(span_str(a->model), model) && span_eq(span_str(a->lora), lora) &&
           span_eq(span_str(a->salt), salt);
}

static void text_take(char out[ROUTE_NAME_MAX + 1], struct span s) {
    snprintf(out, ROUTE_NAME_MAX + 1, "%.*s", (int)s.len, s.len > 0 ? s.data : "");
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
        text_take(a->model, model);
        text_take(a->lora, lora);
        text_take(a->salt, salt);
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
