/* Rotary positions: row i of every head is turned by row start + i of the tables cos and sin, d / 2 wide. The two
 * coordinates of an angle are j and j + d / 2, or with pairs 2 j and 2 j + 1. y may be x.
 */
#include "runtime.h"

static void turn_halves(const float *x, const float *cos, const float *sin, float *y, int32_t half) {
    int32_t j = 0;
    for (; j + 4 <= half; j += 4) {
        vec a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
        store(y + j, sub(mul(a, c), mul(b, s)));
        store(y + half + j, madd(b, c, mul(a, s)));
    }
    for (; j < half; j++) {
        float a = x[j], b = x[half + j];
        y[j] = a * cos[j] - b * sin[j];
        y[half + j] = b * cos[j] + a * sin[j];
    }
}

static void turn_pairs(const float *x, const float *cos, const float *sin, float *y, int32_t half) {
    int32_t j = 0;
    for (; j + 4 <= half; j += 4) {
        vec low = load(x + 2 * j), high = load(x + 2 * j + 4), c = load(cos + j), s = load(sin + j);
        vec a = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), b = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
        vec left = sub(mul(a, c), mul(b, s)), right = madd(b, c, mul(a, s));
        store(y + 2 * j, wasm_i32x4_shuffle(left, right, 0, 4, 1, 5));
        store(y + 2 * j + 4, wasm_i32x4_shuffle(left, right, 2, 6, 3, 7));
    }
    for (; j < half; j++) {
        float a = x[2 * j], b = x[2 * j + 1];
        y[2 * j] = a * cos[j] - b * sin[j];
        y[2 * j + 1] = b * cos[j] + a * sin[j];
    }
}

int32_t kernel_rope(const rope_args *a, const Context *c) {
    int32_t half = a->d / 2, start = most(0, least(*AT(int32_t, a->start), a->start_max));
    Range rows = share(c, a->n_head * a->n, 1);
    for (int32_t r = rows.from; r < rows.to; r++) {
        int32_t head = r / a->n, i = r % a->n;
        int64_t angle = (int64_t)(start + i) * half;
        const float *x = AT(float, a->x) + (int64_t)head * a->x_head + (int64_t)i * a->x_row;
        float *y = AT(float, a->y) + (int64_t)head * a->y_head + (int64_t)i * a->y_row;
        (a->pairs ? turn_pairs : turn_halves)(x, AT(float, a->cos) + angle, AT(float, a->sin) + angle, y, half);
    }
    return DONE;
}
