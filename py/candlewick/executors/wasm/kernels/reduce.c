/* y[i] = sum, mean, maximum or place of the (first) maximum of x[i, 0..n). An empty row gives 0. */
#include "runtime.h"

static float sum_of(const float *x, int32_t n) {
    float total = 0.0f;
    int32_t i = 0;
    while (i + 4 <= n) { /* blocks of 4096 keep the error of long sums small */
        int32_t end = least(n - n % 4, i + 4096);
        vec s0 = zero(), s1 = s0;
        for (; i + 8 <= end; i += 8) {
            s0 = add(s0, load(x + i));
            s1 = add(s1, load(x + i + 4));
        }
        for (; i < end; i += 4) s0 = add(s0, load(x + i));
        total += lane_sum(add(s0, s1));
    }
    for (; i < n; i++) total += x[i];
    return total;
}

static float max_of(const float *x, int32_t n) {
    float high = x[0];
    int32_t i = 0;
    vec h0 = splat(high), h1 = h0, h2 = h0, h3 = h0;
    for (; i + 16 <= n; i += 16) {
        h0 = vmax(h0, load(x + i));
        h1 = vmax(h1, load(x + i + 4));
        h2 = vmax(h2, load(x + i + 8));
        h3 = vmax(h3, load(x + i + 12));
    }
    high = lane_max(vmax(vmax(h0, h1), vmax(h2, h3)));
    for (; i < n; i++) high = x[i] > high ? x[i] : high;
    return high;
}

static int32_t place_of_max(const float *x, int32_t n) {
    vec high = splat(max_of(x, n));
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint32_t mask = wasm_i32x4_bitmask(wasm_f32x4_eq(load(x + i), high));
        if (mask) return i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (x[i] == wasm_f32x4_extract_lane(high, 0)) return i;
    return 0; /* nothing but NaN */
}

int32_t kernel_reduce(const reduce_args *a, const Context *c) {
    if (a->op < 0 || a->op > REDUCE_argmax) return BAD_CODE;
    Range rows = share(c, a->m, 1);
    for (int32_t r = rows.from; r < rows.to; r++) {
        const float *x = AT(float, a->x) + (int64_t)r * a->n;
        float *y = AT(float, a->y) + r;
        switch (a->n ? a->op : REDUCE_sum) {
        case REDUCE_sum: *y = sum_of(x, a->n); break;
        case REDUCE_mean: *y = sum_of(x, a->n) / (float)a->n; break;
        case REDUCE_max: *y = max_of(x, a->n); break;
        case REDUCE_argmax: *(int32_t *)y = place_of_max(x, a->n); break;
        }
    }
    return DONE;
}
