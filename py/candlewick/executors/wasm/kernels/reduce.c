/* y[i] = sum, mean, maximum, place of the (first) maximum or log(sum(e^x)) of x[i, 0..n). An empty row gives 0.
 *
 * Threads share rows out; where rows are fewer than threads and long, they share each row, and put its parts together.
 */
#include "runtime.h"

enum { LONG = 4096 };

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

static float max_of(const float *x, int32_t n) { /* a NaN is passed over */
    float high = -__builtin_inff();
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

static int32_t place_of(float high, const float *x, int32_t n) {
    vec same = splat(high);
    int32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint32_t mask = wasm_i32x4_bitmask(wasm_f32x4_eq(load(x + i), same));
        if (mask) return i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (x[i] == high) return i;
    return 0; /* nothing but NaN */
}

/* Sum of e^(x - high). A row of nothing but -infinity gives a number, not NaN. */
static float exp_sum_of(const float *x, int32_t n, float high) {
    vec h = splat(high == -__builtin_inff() ? 0.0f : high), scale = splat(LOG2E);
    Exp2 e = exp2_from(0.0f);
    float total = 0.0f, line[4] __attribute__((aligned(16)));
    int32_t i = 0;
    while (i + 4 <= n) {
        int32_t end = least(n - n % 4, i + 4096);
        vec s0 = zero(), s1 = s0;
        for (; i + 8 <= end; i += 8) {
            s0 = add(s0, exp2_below(&e, mul(sub(load(x + i), h), scale)));
            s1 = add(s1, exp2_below(&e, mul(sub(load(x + i + 4), h), scale)));
        }
        for (; i < end; i += 4) s0 = add(s0, exp2_below(&e, mul(sub(load(x + i), h), scale)));
        total += lane_sum(add(s0, s1));
    }
    if (i < n) {
        for (int32_t j = 0; j < 4; j++) line[j] = x[least(i + j, n - 1)];
        store(line, exp2_below(&e, mul(sub(load(line), h), scale)));
        for (int32_t j = 0; j < n - i; j++) total += line[j];
    }
    return total;
}

/* What is known of a part of a row. */
typedef struct { float high, sum; int32_t place; } Part;

static Part part_of(int32_t op, const float *x, int32_t from, int32_t n) {
    Part p = {-__builtin_inff(), 0.0f, from};
    if (n <= 0) return p;
    if (op == REDUCE_sum || op == REDUCE_mean) p.sum = sum_of(x + from, n);
    else p.high = max_of(x + from, n);
    if (op == REDUCE_argmax) p.place = from + place_of(p.high, x + from, n);
    if (op == REDUCE_log_sum_exp) p.sum = exp_sum_of(x + from, n, p.high);
    return p;
}

INLINE float exp_of(float x) { return wasm_f32x4_extract_lane(vexp(splat(x)), 0); }

static Part join(int32_t op, Part a, Part b) {
    Part p = b.high > a.high ? b : a;
    p.sum = a.sum + b.sum;
    if (op == REDUCE_log_sum_exp && p.high != -__builtin_inff())
        p.sum = a.sum * exp_of(a.high - p.high) + b.sum * exp_of(b.high - p.high);
    return p;
}

static void write_part(int32_t op, Part p, int32_t n, float *y) {
    switch (op) {
    case REDUCE_sum: *y = p.sum; break;
    case REDUCE_mean: *y = p.sum / (float)n; break;
    case REDUCE_max: *y = p.high; break;
    case REDUCE_argmax: *(int32_t *)y = p.place; break;
    case REDUCE_log_sum_exp: *y = p.high + wasm_f32x4_extract_lane(vlog(splat(p.sum)), 0); break;
    }
}

int32_t kernel_reduce(const reduce_args *a, const Context *c) {
    if (a->op < 0 || a->op > REDUCE_log_sum_exp) return BAD_CODE;
    int32_t op = a->n ? a->op : REDUCE_sum;
    if (a->m >= c->n_threads || a->n < LONG) {
        Range rows = share(c, a->m, 1);
        for (int32_t r = rows.from; r < rows.to; r++)
            write_part(op, part_of(op, AT(float, a->x) + (int64_t)r * a->n, 0, a->n), a->n, AT(float, a->y) + r);
        return DONE;
    }
    Range mine = share(c, a->n, 64);
    for (int32_t r = 0; r < a->m; r++)
        ((Part *)c->scratch)[r] = part_of(op, AT(float, a->x) + (int64_t)r * a->n, mine.from, mine.to - mine.from);
    int32_t status = meet(c);
    if (status || c->thread >= a->m) return status;
    const float *first = c->scratch - (int64_t)c->thread * (c->scratch_bytes / 4);
    Part whole = ((const Part *)first)[c->thread];
    for (int32_t t = 1; t < c->n_threads; t++)
        whole = join(op, whole, ((const Part *)(first + (int64_t)t * (c->scratch_bytes / 4)))[c->thread]);
    write_part(op, whole, a->n, AT(float, a->y) + c->thread);
    return DONE;
}
