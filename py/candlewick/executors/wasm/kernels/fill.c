/* dst[i] = value */
#include "runtime.h"

int32_t kernel_fill(const fill_args *a, const Context *c) {
    Range part = share(c, a->count, 64);
    float *dst = AT(float, a->dst);
    int32_t i = part.from;
    for (vec v = splat(a->value); i + 4 <= part.to; i += 4) store(dst + i, v);
    for (; i < part.to; i++) dst[i] = a->value;
    return DONE;
}
