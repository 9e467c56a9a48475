/* y[i] = op(x[i]); x and y may be the same. */
#include "runtime.h"

#define LOG10E 0.434294481903251828f

INLINE vec log10_of(vec x) { return mul(vlog(x), splat(LOG10E)); }
INLINE vec square_of(vec x) { return mul(x, x); }

/* One loop an op, so that nothing is decided inside it; the last one to three values go through a padded vector. */
#define LOOP(NAME, FUNCTION)                                                                                             \
    static __attribute__((noinline)) void unary_##NAME(const float *x, float *y, int32_t count) {                        \
        int32_t i = 0;                                                                                                   \
        for (; i + 4 <= count; i += 4) store(y + i, FUNCTION(load(x + i)));                                              \
        if (i < count) {                                                                                                 \
            float line[4] __attribute__((aligned(16))) = {1.0f, 1.0f, 1.0f, 1.0f};                                       \
            for (int32_t j = i; j < count; j++) line[j - i] = x[j];                                                      \
            store(line, FUNCTION(load(line)));                                                                           \
            for (int32_t j = i; j < count; j++) y[j] = line[j - i];                                                      \
        }                                                                                                                \
    }
#define OPS(X)                                                                                                           \
    X(gelu, gelu) X(relu, relu) X(silu, silu) X(exp, vexp) X(log, vlog) X(log10, log10_of) X(sqrt, wasm_f32x4_sqrt)      \
    X(square, square_of) X(neg, wasm_f32x4_neg) X(tanh, vtanh) X(sigmoid, sigmoid)
OPS(LOOP)

int32_t kernel_unary(const unary_args *a, const Context *c) {
    Range part = share(c, a->count, 64);
    const float *x = AT(float, a->x) + part.from;
    float *y = AT(float, a->y) + part.from;
    switch (a->op) {
#define CASE(NAME, FUNCTION)                                                                                             \
    case UNARY_##NAME: unary_##NAME(x, y, part.to - part.from); return DONE;
        OPS(CASE)
#undef CASE
    }
    return BAD_CODE;
}
