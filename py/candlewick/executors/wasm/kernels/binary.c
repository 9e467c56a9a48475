/* y[i, j] = a[i * a_outer + j * a_inner] op b[i * b_outer + j * b_inner]: strides of 0 broadcast. y may be a or b. */
#include "runtime.h"

INLINE vec apply(int32_t op, vec a, vec b) {
    switch (op) {
    case BINARY_add: return add(a, b);
    case BINARY_sub: return sub(a, b);
    case BINARY_mul: return mul(a, b);
    case BINARY_div: return vdiv(a, b);
    case BINARY_maximum: return wasm_f32x4_max(a, b);
    }
    return wasm_f32x4_min(a, b);
}

INLINE vec four(const float *p, int32_t stride) {
    if (stride == 1) return load(p);
    if (stride == 0) return load_splat(p);
    return wasm_f32x4_make(p[0], p[stride], p[2 * (int64_t)stride], p[3 * (int64_t)stride]);
}

static void line(int32_t op, const float *a, int32_t sa, const float *b, int32_t sb, float *y, int32_t from, int32_t to) {
    int32_t j = from;
    for (; j + 4 <= to; j += 4) store(y + j, apply(op, four(a + (int64_t)j * sa, sa), four(b + (int64_t)j * sb, sb)));
    for (; j < to; j++)
        y[j] = wasm_f32x4_extract_lane(apply(op, load_splat(a + (int64_t)j * sa), load_splat(b + (int64_t)j * sb)), 0);
}

int32_t kernel_binary(const binary_args *a, const Context *c) {
    if (a->op < 0 || a->op > BINARY_minimum) return BAD_CODE;
    int split_inner = a->n_outer < c->n_threads;
    Range rows = split_inner ? (Range){0, a->n_outer} : share(c, a->n_outer, 1);
    Range columns = split_inner ? share(c, a->n_inner, 64) : (Range){0, a->n_inner};
    for (int32_t i = rows.from; i < rows.to; i++)
        line(a->op, AT(float, a->a) + (int64_t)i * a->a_outer, a->a_inner, AT(float, a->b) + (int64_t)i * a->b_outer, a->b_inner,
             AT(float, a->y) + (int64_t)i * a->n_inner, columns.from, columns.to);
    return DONE;
}
