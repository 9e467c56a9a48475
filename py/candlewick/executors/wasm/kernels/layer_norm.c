/* y[i] = (x[i] - mean) / sqrt(variance + eps) * w + b, row by row; mean first, then the squares of differences, in float32. */
#include "runtime.h"

static float row_sum(const float *x, int32_t n) {
    vec s0 = zero(), s1 = s0, s2 = s0, s3 = s0;
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        s0 = add(s0, load(x + i));
        s1 = add(s1, load(x + i + 4));
        s2 = add(s2, load(x + i + 8));
        s3 = add(s3, load(x + i + 12));
    }
    float rest = 0.0f;
    for (; i + 4 <= n; i += 4) s0 = add(s0, load(x + i));
    for (; i < n; i++) rest += x[i];
    return lane_sum(add(add(s0, s1), add(s2, s3))) + rest;
}

/* Sum of (x - mean)^2 and, to take back the rounding of the mean, of (x - mean). */
static float row_variance(const float *x, int32_t n, float mean) {
    vec m = splat(mean), s[4] = {zero(), zero(), zero(), zero()}, d[4] = {zero(), zero(), zero(), zero()};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        FULLY for (int j = 0; j < 4; j++) {
            vec a = sub(load(x + i + 4 * j), m);
            s[j] = madd(a, a, s[j]);
            d[j] = add(d[j], a);
        }
    float squares = lane_sum(add(add(s[0], s[1]), add(s[2], s[3])));
    float drift = lane_sum(add(add(d[0], d[1]), add(d[2], d[3])));
    for (; i < n; i++) {
        float d = x[i] - mean;
        squares += d * d;
        drift += d;
    }
    float variance = (squares - drift * drift / (float)n) / (float)n;
    return variance > 0.0f ? variance : 0.0f;
}

/* y = (x - mean) * scale * w + b */
static void apply(const float *x, const float *w, const float *b, float *y, int32_t n, float mean, float scale) {
    vec m = splat(mean), s = splat(scale);
    int32_t i = 0;
    if (w && b)
        for (; i + 8 <= n; i += 8) {
            store(y + i, madd(mul(sub(load(x + i), m), s), load(w + i), load(b + i)));
            store(y + i + 4, madd(mul(sub(load(x + i + 4), m), s), load(w + i + 4), load(b + i + 4)));
        }
    for (; i < n; i++) y[i] = (x[i] - mean) * scale * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f);
}

int32_t kernel_layer_norm(const layer_norm_args *a, const Context *c) {
    int32_t n = a->n;
    Range rows = share(c, a->m, 1);
    const float *w = a->w ? AT(float, a->w) : 0, *b = a->b ? AT(float, a->b) : 0;
    for (int32_t r = rows.from; r < rows.to; r++) {
        const float *x = AT(float, a->x) + (int64_t)r * n;
        float mean = row_sum(x, n) / (float)n;
        apply(x, w, b, AT(float, a->y) + (int64_t)r * n, n, mean, 1.0f / __builtin_sqrtf(row_variance(x, n, mean) + a->eps));
    }
    return DONE;
}
