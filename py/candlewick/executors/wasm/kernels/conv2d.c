/* y = final(activation(conv(x) + bias) + residual), all channels last.
 *
 * Dense: the inputs of a block of outputs are laid side by side in thread scratch, [output][ky][kx][c_in] with zeros where the
 * picture ends, and that block is a matrix product with the weight in panels (see pack.c: the same order). The block stays
 * in L2 while all panels pass, so laying out costs about one load and store for every c_out multiply-adds.
 */
#include "product.h"

static void copy_floats(const float *from, float *to, int32_t count) {
    int32_t i = 0;
    for (; i + 4 <= count; i += 4) store(to + i, load(from + i));
    for (; i < count; i++) to[i] = from[i];
}

static void zero_floats(float *to, int32_t count) {
    int32_t i = 0;
    for (; i + 4 <= count; i += 4) store(to + i, zero());
    for (; i < count; i++) to[i] = 0.0f;
}

/* The inputs of output number `index` (batch, row and column in one), kh x kw x c_in of them. */
static void lay_out(const conv2d_args *a, int32_t index, float *to) {
    int32_t x = index % a->w_out * a->stride - a->padding, row = index / a->w_out;
    int32_t y = row % a->h_out * a->stride - a->padding, batch = row / a->h_out, c = a->c_in, line = a->kw * c;
    int32_t left = least(a->kw, most(0, -x)), right = least(a->kw, most(0, x + a->kw - a->width));
    const float *picture = AT(float, a->x) + (int64_t)batch * a->height * a->width * c;
    for (int32_t i = 0; i < a->kh; i++, to += line) {
        if (y + i < 0 || y + i >= a->height) {
            zero_floats(to, line);
            continue;
        }
        const float *from = picture + ((int64_t)(y + i) * a->width + x) * c;
        if (left) zero_floats(to, left * c);
        if (right) zero_floats(to + (a->kw - right) * c, right * c);
        copy_floats(from + left * c, to + left * c, (a->kw - left - right) * c);
    }
}

int32_t kernel_conv2d(const conv2d_args *a, const Context *c) {
    int32_t m = a->batch * a->h_out * a->w_out, n = a->c_out, k = a->kh * a->kw * a->c_in;
    if (m <= 0 || n <= 0 || k <= 0) return DONE;
    int32_t room = (c->scratch_bytes / 4 - PRODUCT_SCRATCH(ROW_BLOCK)) / k;
    int32_t tall = least(ROW_BLOCK, room) / 3 * 3, panels = ceil_div(n, PANEL);
    while (tall > 12 && ceil_div(m, tall) < 8 * c->n_threads) tall = tall / 6 * 3;
    if (room < 1) return BAD_CODE;
    if (tall < 3) tall = room;
    float *block = c->scratch + PRODUCT_SCRATCH(ROW_BLOCK);
    int32_t blocks = ceil_div(m, tall);
    for (int32_t task; (task = claim_apart(c, blocks)) < blocks;) {
        int32_t first = task * tall, rows = least(tall, m - first);
        for (int32_t r = 0; r < rows; r++) lay_out(a, first + r, block + r * k);
        int64_t offset = (int64_t)first * n * 4;
        const linear_args product = {.x = (int32_t)(uintptr_t)block, .ldx = k, .w = a->w, .bias = a->bias,
                                     .residual = a->residual ? (int32_t)(a->residual + offset) : 0, .ldr = n,
                                     .y = (int32_t)(a->y + offset), .ldy = n, .m = rows, .n = n, .k = k,
                                     .w_dtype = a->w_dtype, .activation = a->activation, .final = a->final};
        for (int32_t p = 0; p < panels; p++) multiply(&product, c->scratch, p, 0, rows);
    }
    return DONE;
}
