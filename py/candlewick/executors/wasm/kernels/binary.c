/* y[i, j] = a[i * a_outer + j * a_inner] op b[i * b_outer + j * b_inner]: strides of 0 broadcast. y may be a or b. */
#include "runtime.h"

INLINE vec four(const float *p, int32_t stride) {
    return wasm_f32x4_make(p[0], p[stride], p[2 * (int64_t)stride], p[3 * (int64_t)stride]);
}

INLINE vec swiglu(vec a, vec b) { return mul(silu(a), b); }

/* One loop for an op and a pair of strides, so that nothing is decided inside it: along both, along one with the other the
 * same all the way, and everything else. */
#define LOOP(NAME, FUNCTION)                                                                                             \
    static __attribute__((noinline)) void binary_##NAME(const float *a, int32_t sa, const float *b, int32_t sb,          \
                                                        float *y, int32_t n) {                                           \
        int32_t j = 0;                                                                                                   \
        if (sa == 1 && sb == 1) {                                                                                        \
            for (; j + 4 <= n; j += 4) store(y + j, FUNCTION(load(a + j), load(b + j)));                                 \
        } else if (sa == 1 && sb == 0) {                                                                                 \
            vec same = load_splat(b);                                                                                    \
            for (; j + 4 <= n; j += 4) store(y + j, FUNCTION(load(a + j), same));                                        \
        } else if (sa == 0 && sb == 1) {                                                                                 \
            vec same = load_splat(a);                                                                                    \
            for (; j + 4 <= n; j += 4) store(y + j, FUNCTION(same, load(b + j)));                                        \
        } else {                                                                                                         \
            for (; j + 4 <= n; j += 4)                                                                                   \
                store(y + j, FUNCTION(four(a + (int64_t)j * sa, sa), four(b + (int64_t)j * sb, sb)));                    \
        }                                                                                                                \
        for (; j < n; j++) {                                                                                             \
            vec last = FUNCTION(load_splat(a + (int64_t)j * sa), load_splat(b + (int64_t)j * sb));                       \
            y[j] = wasm_f32x4_extract_lane(last, 0);                                                                     \
        }                                                                                                                \
    }
/* A short row of b for every row of a: b is repeated four times, so that whole vectors meet. `rows` is a multiple of 4. */
enum { SHORT = 16 };
#define SHORT_LOOP(NAME, FUNCTION)                                                                                       \
    static __attribute__((noinline)) void short_##NAME(const float *a, const float *b, float *y, int32_t n, int32_t rows) { \
        float line[4 * SHORT] __attribute__((aligned(16)));                                                              \
        for (int32_t i = 0; i < 4 * n; i++) line[i] = b[i % n];                                                          \
        for (int32_t r = 0; r < rows; r += 4, a += 4 * n, y += 4 * n)                                                    \
            for (int32_t j = 0; j < 4 * n; j += 4) store(y + j, FUNCTION(load(a + j), load(line + j)));                  \
    }
#define OPS(X)                                                                                                           \
    X(add, add) X(sub, sub) X(mul, mul) X(div, vdiv) X(maximum, wasm_f32x4_max) X(minimum, wasm_f32x4_min) X(swiglu, swiglu)
OPS(LOOP)
OPS(SHORT_LOOP)

int32_t kernel_binary(const binary_args *k, const Context *c) {
    int split_inner = k->n_outer < c->n_threads;
    Range rows = split_inner ? (Range){0, k->n_outer} : share(c, k->n_outer, 1);
    Range columns = split_inner ? share(c, k->n_inner, 64) : (Range){0, k->n_inner};
    if (!split_inner && k->n_inner <= SHORT && k->a_outer == k->n_inner && k->a_inner == 1 && !k->b_outer && k->b_inner == 1) {
        rows = share(c, k->n_outer, 4);
        int32_t whole = (rows.to - rows.from) / 4 * 4, at = rows.from * k->n_inner;
        switch (k->op) {
#define CASE(NAME, FUNCTION)                                                                                             \
    case BINARY_##NAME: short_##NAME(AT(float, k->a) + at, AT(float, k->b), AT(float, k->y) + at, k->n_inner, whole); break;
            OPS(CASE)
#undef CASE
        }
        rows.from += whole; /* the last one to three rows as usual */
    }
    for (int32_t i = rows.from; i < rows.to; i++) {
        const float *a = AT(float, k->a) + (int64_t)i * k->a_outer + (int64_t)columns.from * k->a_inner;
        const float *b = AT(float, k->b) + (int64_t)i * k->b_outer + (int64_t)columns.from * k->b_inner;
        float *y = AT(float, k->y) + (int64_t)i * k->n_inner + columns.from;
        switch (k->op) {
#define CASE(NAME, FUNCTION)                                                                                             \
    case BINARY_##NAME: binary_##NAME(a, k->a_inner, b, k->b_inner, y, columns.to - columns.from); break;
            OPS(CASE)
#undef CASE
        default: return BAD_CODE;
        }
    }
    return DONE;
}
