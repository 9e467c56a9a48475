/* y[i] = row ids[i] of a table that is stored as a weight in panels of 12 rows; an id outside the table is clamped into it. */
#include "runtime.h"

int32_t kernel_embedding(const embedding_args *a, const Context *c) {
    int32_t n = a->n;
    Range rows = share(c, a->m, 1);
    for (int32_t r = rows.from; r < rows.to; r++) {
        int32_t id = most(0, least(AT(int32_t, a->ids)[r], a->n_rows - 1));
        float *y = AT(float, a->y) + (int64_t)r * n;
        uint32_t first = (uint32_t)(id / PANEL) * (uint32_t)n * PANEL + (uint32_t)(id % PANEL);
        if (a->w_dtype == DTYPE_f32) {
            const float *w = AT(float, a->table) + first;
            for (int32_t i = 0; i < n; i++) y[i] = w[i * PANEL];
        } else {
            const uint16_t *w = AT(uint16_t, a->table) + first;
            if (a->w_dtype == DTYPE_f16) for (int32_t i = 0; i < n; i++) y[i] = half_scalar(w[i * PANEL]);
            else for (int32_t i = 0; i < n; i++) y[i] = bfloat_scalar(w[i * PANEL]);
        }
    }
    return DONE;
}
