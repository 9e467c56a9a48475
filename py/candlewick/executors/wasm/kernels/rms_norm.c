/* y[i] = x[i] / sqrt(mean(x[i]^2) + eps) * w, row by row; rows of x are ldx apart. y may be x. */
#include "norm.h"

static float square_sum(const float *x, int32_t n) {
    vec s[4] = {zero(), zero(), zero(), zero()};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        FULLY for (int j = 0; j < 4; j++) {
            vec v = load(x + i + 4 * j);
            s[j] = madd(v, v, s[j]);
        }
    for (; i + 4 <= n; i += 4) s[0] = madd(load(x + i), load(x + i), s[0]);
    float rest = 0.0f;
    for (; i < n; i++) rest += x[i] * x[i];
    return lane_sum(add(add(s[0], s[1]), add(s[2], s[3]))) + rest;
}

void rms_norm_row(const float *x, const float *w, float *y, int32_t n, float eps) {
    float scale = 1.0f / __builtin_sqrtf(square_sum(x, n) / (float)n + eps);
    vec s = splat(scale);
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) store(y + i, mul(mul(load(x + i), s), load(w + i)));
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

int32_t kernel_rms_norm(const rms_norm_args *a, const Context *c) {
    Range rows = share(c, a->m, 1);
    for (int32_t r = rows.from; r < rows.to; r++)
        rms_norm_row(AT(float, a->x) + (int64_t)r * a->ldx, AT(float, a->w), AT(float, a->y) + (int64_t)r * a->n, a->n, a->eps);
    return DONE;
}
