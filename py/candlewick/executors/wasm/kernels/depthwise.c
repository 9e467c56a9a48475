/* Depthwise convolution, channels last: y[p, c] = final(activation(sum over taps of x[p + tap, c] w[tap, c] + bias[c]) + residual).
 *
 * Threads claim strips of STRIP_WIDTH x STRIP_HEIGHT outputs, whose inputs fit L2. Within a strip a tile of four neighbouring
 * outputs shares its loads (3 x 3 kernels): 18 loads of x, 9 of w, 36 multiply-adds, 4 channels at a time. Outputs whose
 * inputs lie partly outside the picture are computed one by one.
 */
#include "product.h"

enum { STRIP_WIDTH = 64, STRIP_HEIGHT = 8, TILE = 4 };

/* w in panels of 12 channels -> [tap][channels], float32. */
static void unpack(const depthwise_args *a, float *w, int32_t width) {
    int32_t taps = a->taps * a->taps;
    for (int32_t t = 0; t < taps; t++)
        for (int32_t i = 0; i < a->channels; i++) {
            uint32_t from = (uint32_t)(i / PANEL * taps + t) * PANEL + (uint32_t)(i % PANEL);
            w[t * width + i] = a->w_dtype == DTYPE_f32   ? AT(float, a->w)[from]
                               : a->w_dtype == DTYPE_f16 ? half_scalar(AT(uint16_t, a->w)[from])
                                                         : bfloat_scalar(AT(uint16_t, a->w)[from]);
        }
}

/* Four outputs side by side, all channels that come in fours: taps (ky, kx) of x at `row` + ky `line`, of `rows` kernel rows. */
#define TILE_3X3(STRIDE)                                                                                                 \
    static __attribute__((noinline)) void tile_stride_##STRIDE(const float *x, int32_t line, int32_t channels,           \
                                                               const float *w, int32_t width, int32_t rows,              \
                                                               const float *bias, float *y) {                            \
        for (int32_t c = 0; c + 4 <= channels; c += 4) {                                                                 \
            vec acc[TILE];                                                                                               \
            vec start = bias ? load(bias + c) : zero();                                                                  \
            FULLY for (int t = 0; t < TILE; t++) acc[t] = start;                                                         \
            const float *from = x + c, *taps = w + c;                                                                    \
            for (int32_t ky = 0; ky < rows; ky++, from += line, taps += 3 * width) {                                     \
                vec k0 = load(taps), k1 = load(taps + width), k2 = load(taps + 2 * width);                               \
                const float *p = from;                                                                                   \
                FULLY for (int i = 0; i < (TILE - 1) * STRIDE + 3; i++, p += channels) {                                 \
                    vec v = load(p);                                                                                     \
                    if (i % STRIDE == 0 && i / STRIDE < TILE) acc[i / STRIDE] = madd(v, k0, acc[i / STRIDE]);            \
                    if (i >= 1 && (i - 1) % STRIDE == 0 && (i - 1) / STRIDE < TILE)                                      \
                        acc[(i - 1) / STRIDE] = madd(v, k1, acc[(i - 1) / STRIDE]);                                      \
                    if (i >= 2 && (i - 2) % STRIDE == 0 && (i - 2) / STRIDE < TILE)                                      \
                        acc[(i - 2) / STRIDE] = madd(v, k2, acc[(i - 2) / STRIDE]);                                      \
                }                                                                                                        \
            }                                                                                                            \
            float *to = y + c;                                                                                           \
            FULLY for (int t = 0; t < TILE; t++, to += channels) store(to, acc[t]);                                      \
        }                                                                                                                \
    }
TILE_3X3(1)
TILE_3X3(2)

/* One output, channels [from, channels), any kernel; inputs outside the picture are left out. */
static void one(const depthwise_args *a, const float *picture, const float *w, int32_t width, int32_t oy, int32_t ox,
                int32_t from, float *y) {
    int32_t channels = a->channels, top = oy * a->stride - a->padding, left = ox * a->stride - a->padding;
    const float *bias = a->bias ? AT(float, a->bias) : 0;
    int32_t c = from;
    for (; c + 4 <= channels; c += 4) store(y + c, bias ? load(bias + c) : zero());
    for (; c < channels; c++) y[c] = bias ? bias[c] : 0.0f;
    for (int32_t i = most(0, -top); i < least(a->taps, a->height - top); i++)
        for (int32_t j = most(0, -left); j < least(a->taps, a->width - left); j++) {
            const float *x = picture + ((int64_t)(top + i) * a->width + left + j) * channels;
            const float *taps = w + (i * a->taps + j) * width;
            for (c = from; c + 4 <= channels; c += 4) store(y + c, madd(load(x + c), load(taps + c), load(y + c)));
            for (; c < channels; c++) y[c] += x[c] * taps[c];
        }
}

int32_t kernel_depthwise(const depthwise_args *a, const Context *c) {
    int32_t channels = a->channels, width = ceil_div(channels, 4) * 4, taps = a->taps * a->taps;
    if (channels <= 0 || a->batch * a->h_out * a->w_out <= 0) return DONE;
    if (taps * width * 4 > c->scratch_bytes) return BAD_CODE;
    float *w = c->scratch;
    unpack(a, w, width);
    const float *bias = a->bias ? AT(float, a->bias) : 0;
    int32_t across = ceil_div(a->w_out, STRIP_WIDTH), down = ceil_div(a->h_out, STRIP_HEIGHT), tail = channels / 4 * 4;
    int quick = a->taps == 3 && (a->stride == 1 || a->stride == 2);
    int32_t strips = a->batch * across * down;
    for (int32_t task; (task = claim_apart(c, strips)) < strips;) {
        int32_t batch = task / (across * down), x0 = task % across * STRIP_WIDTH, y0 = task / across % down * STRIP_HEIGHT;
        int32_t x1 = least(x0 + STRIP_WIDTH, a->w_out), y1 = least(y0 + STRIP_HEIGHT, a->h_out);
        const float *picture = AT(float, a->x) + (int64_t)batch * a->height * a->width * channels;
        int32_t touched = most(0, y0 * a->stride - a->padding), from_x = most(0, x0 * a->stride - a->padding);
        int32_t to_x = least(a->width, (x1 - 1) * a->stride - a->padding + a->taps);
        for (int32_t oy = y0; oy < y1; oy++) {
            for (; touched < least(a->height, oy * a->stride - a->padding + a->taps); touched++)
                touch(picture + ((int64_t)touched * a->width + from_x) * channels, most(0, to_x - from_x) * channels);
            int64_t line = (((int64_t)batch * a->h_out + oy) * a->w_out) * channels;
            float *y = AT(float, a->y) + line;
            touch(y + (int64_t)x0 * channels, (x1 - x0) * channels);
            int32_t top = oy * a->stride - a->padding, first = most(0, -top), rows = least(3, a->height - top) - first;
            for (int32_t ox = x0; ox < x1;) {
                int32_t left = ox * a->stride - a->padding;
                int32_t count = 1;
                if (quick && ox + TILE <= x1 && left >= 0 && left + (TILE - 1) * a->stride + 3 <= a->width && rows > 0) {
                    const float *x = picture + ((int64_t)(top + first) * a->width + left) * channels;
                    (a->stride == 1 ? tile_stride_1 : tile_stride_2)(x, a->width * channels, channels, w + 3 * first * width,
                                                                     width, rows, bias, y + (int64_t)ox * channels);
                    count = TILE;
                    if (tail < channels)
                        for (int32_t t = 0; t < TILE; t++)
                            one(a, picture, w, width, oy, ox + t, tail, y + (int64_t)(ox + t) * channels);
                } else {
                    one(a, picture, w, width, oy, ox, 0, y + (int64_t)ox * channels);
                }
                finish_line(y + (int64_t)ox * channels,
                            a->residual ? AT(float, a->residual) + line + (int64_t)ox * channels : 0, count * channels,
                            a->activation, a->final);
                ox += count;
            }
        }
    }
    return DONE;
}
