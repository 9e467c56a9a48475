/* Softmax (log = 0) or its logarithm (log = 1) of each row; x and y may be the same. */
#include "runtime.h"

INLINE vec power(vec x, vec high) { return vexp(sub(x, high)); }

static float tail(float x) { return wasm_f32x4_extract_lane(vexp(splat(x)), 0); }

/* Rows of at most 12 values, the whole of each in registers. */
static void short_rows(const float *x, float *y, int32_t n, int32_t rows) {
    float line[12] __attribute__((aligned(16)));
    Exp2 e = exp2_from(0.0f);
    vec nothing = splat(-1e30f), scale = splat(LOG2E);
    for (int i = 0; i < 12; i += 4) store(line + i, nothing);
    int32_t vecs = ceil_div(n, 4);
    for (int32_t r = 0; r < rows; r++, x += n, y += n) {
        for (int32_t i = 0; i < n; i++) line[i] = x[i];
        vec v[3] = {load(line), vecs > 1 ? load(line + 4) : nothing, vecs > 2 ? load(line + 8) : nothing}, total = zero();
        vec high = splat(lane_max(vmax(vmax(v[0], v[1]), v[2])));
        for (int32_t i = 0; i < vecs; i++) {
            vec below = mul(sub(v[i], high), scale);
            vec p = wasm_v128_and(exp2_below(&e, below), wasm_f32x4_gt(v[i], nothing));
            store(line + 4 * i, p);
            total = add(total, p);
        }
        float inverse = 1.0f / lane_sum(total);
        for (int32_t i = 0; i < n; i++) y[i] = line[i] * inverse;
        for (int32_t i = n; i < 4 * vecs; i++) line[i] = -1e30f;
    }
}

int32_t kernel_softmax(const softmax_args *a, const Context *c) {
    int32_t n = a->n;
    Range rows = share(c, a->m, 1);
    if (!a->log && n <= 12) {
        short_rows(AT(float, a->x) + (int64_t)rows.from * n, AT(float, a->y) + (int64_t)rows.from * n, n, rows.to - rows.from);
        return DONE;
    }
    for (int32_t r = rows.from; r < rows.to; r++) {
        const float *x = AT(float, a->x) + (int64_t)r * n;
        float *y = AT(float, a->y) + (int64_t)r * n;
        float high = x[0], total = 0.0f;
        vec h = splat(high), s = zero();
        int32_t i = 0;
        for (; i + 4 <= n; i += 4) h = vmax(h, load(x + i));
        high = lane_max(h);
        for (; i < n; i++) high = x[i] > high ? x[i] : high;
        h = splat(high);
        if (a->log) {
            for (i = 0; i + 4 <= n; i += 4) s = add(s, power(load(x + i), h));
            for (; i < n; i++) total += tail(x[i] - high);
            float log_total = wasm_f32x4_extract_lane(vlog(splat(total + lane_sum(s))), 0);
            vec l = splat(log_total);
            for (i = 0; i + 4 <= n; i += 4) store(y + i, sub(sub(load(x + i), h), l));
            for (; i < n; i++) y[i] = x[i] - high - log_total;
        } else {
            for (i = 0; i + 4 <= n; i += 4) {
                vec p = power(load(x + i), h);
                store(y + i, p);
                s = add(s, p);
            }
            for (; i < n; i++) total += y[i] = tail(x[i] - high);
            float inverse = 1.0f / (total + lane_sum(s));
            vec f = splat(inverse);
            for (i = 0; i + 4 <= n; i += 4) store(y + i, mul(load(y + i), f));
            for (; i < n; i++) y[i] *= inverse;
        }
    }
    return DONE;
}
