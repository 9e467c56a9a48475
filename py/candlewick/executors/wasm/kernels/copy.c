/* A strided copy of up to four dimensions of 32-bit words: transposes, slices, concatenation, cache updates, dynamic rows. */
#include "runtime.h"

static void copy_line(const int32_t *from, int32_t s, int32_t *to, int32_t t, int32_t count) {
    int32_t i = 0;
    if (s == 1 && t == 1)
        for (; i + 4 <= count; i += 4) wasm_v128_store(to + i, wasm_v128_load(from + i));
    for (; i < count; i++) to[(int64_t)i * t] = from[(int64_t)i * s];
}

/* to[i][j] = from[j][i]: `rows` x `columns` of the target, whose rows are `t` apart; the source's are `s` apart. */
static void transpose(const float *from, int32_t s, float *to, int32_t t, int32_t rows, int32_t columns) {
    int32_t j = 0;
    for (; j + 4 <= columns; j += 4) {
        const float *block = from + (int64_t)j * s;
        int32_t i = 0;
        for (; i + 4 <= rows; i += 4) {
            vec a = load(block + i), b = load(block + s + i), c = load(block + 2 * (int64_t)s + i),
                d = load(block + 3 * (int64_t)s + i);
            transpose4(&a, &b, &c, &d);
            float *out = to + (int64_t)i * t + j;
            store(out, a);
            store(out + t, b);
            store(out + 2 * (int64_t)t, c);
            store(out + 3 * (int64_t)t, d);
        }
        for (; i < rows; i++)
            for (int32_t q = 0; q < 4; q++) to[(int64_t)i * t + j + q] = block[(int64_t)q * s + i];
    }
    for (; j < columns; j++)
        for (int32_t i = 0; i < rows; i++) to[(int64_t)i * t + j] = from[(int64_t)j * s + i];
}

int32_t kernel_copy(const copy_args *a, const Context *c) {
    const int32_t *src = AT(int32_t, a->src);
    int32_t *dst = AT(int32_t, a->dst);
    if (a->offset) {
        int64_t moved = (int64_t)most(0, least(*AT(int32_t, a->offset), a->offset_max)) * a->offset_stride;
        if (a->into_dst) dst += moved;
        else src += moved;
    }
    if (a->d0 <= 0 || a->d1 <= 0 || a->d2 <= 0 || a->d3 <= 0) return DONE;
    int32_t outer = a->d0 * a->d1;
    if (a->t3 == 1 && a->s2 == 1 && a->s3 != 1 && a->d2 >= 4 && a->d3 >= 4) {
        Range part = share(c, outer * ceil_div(a->d2, 64), 1); /* strips of 64 target rows */
        for (int32_t i = part.from; i < part.to; i++) {
            int32_t strip = i % ceil_div(a->d2, 64) * 64, o = i / ceil_div(a->d2, 64), i0 = o / a->d1, i1 = o % a->d1;
            transpose((const float *)src + (int64_t)i0 * a->s0 + (int64_t)i1 * a->s1 + strip, a->s3,
                      (float *)dst + (int64_t)i0 * a->t0 + (int64_t)i1 * a->t1 + (int64_t)strip * a->t2, a->t2,
                      least(64, a->d2 - strip), a->d3);
        }
        return DONE;
    }
    int32_t lines = outer * a->d2;
    if (lines < c->n_threads && a->d3 >= 1024) { /* few long lines: split along them */
        Range part = share(c, a->d3, 64);
        for (int32_t line = 0; line < lines; line++) {
            int32_t i2 = line % a->d2, i1 = line / a->d2 % a->d1, i0 = line / a->d2 / a->d1;
            copy_line(src + (int64_t)i0 * a->s0 + (int64_t)i1 * a->s1 + (int64_t)i2 * a->s2 + (int64_t)part.from * a->s3, a->s3,
                      dst + (int64_t)i0 * a->t0 + (int64_t)i1 * a->t1 + (int64_t)i2 * a->t2 + (int64_t)part.from * a->t3, a->t3,
                      part.to - part.from);
        }
        return DONE;
    }
    Range part = share(c, lines, 1);
    for (int32_t line = part.from; line < part.to; line++) {
        int32_t i2 = line % a->d2, i1 = line / a->d2 % a->d1, i0 = line / a->d2 / a->d1;
        copy_line(src + (int64_t)i0 * a->s0 + (int64_t)i1 * a->s1 + (int64_t)i2 * a->s2, a->s3,
                  dst + (int64_t)i0 * a->t0 + (int64_t)i1 * a->t1 + (int64_t)i2 * a->t2, a->t3, a->d3);
    }
    return DONE;
}
