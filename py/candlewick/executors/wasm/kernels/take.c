/* y[i, j] = x[i, ids[i, j]]; an id outside the row is clamped into it. */
#include "runtime.h"

int32_t kernel_take(const take_args *a, const Context *c) {
    Range part = share(c, a->m * a->k, 16);
    for (int32_t i = part.from; i < part.to; i++) {
        int32_t id = most(0, least(AT(int32_t, a->ids)[i], a->n - 1));
        AT(float, a->y)[i] = AT(float, a->x)[(int64_t)(i / a->k) * a->n + id];
    }
    return DONE;
}
