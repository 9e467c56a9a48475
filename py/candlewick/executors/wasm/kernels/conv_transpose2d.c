/* Transposed convolution whose kernel is its stride: every input position gives stride x stride outputs, and each of those is
 * a linear of its own. Every thread packs the weights (c_in, c_out, stride, stride) into panels in its scratch, then rows of
 * the picture are claimed.
 */
#include "product.h"

int32_t kernel_conv_transpose2d(const conv_transpose2d_args *a, const Context *c) {
    int32_t taps = a->stride * a->stride, k = a->c_in, n = a->c_out, panels = ceil_div(n, PANEL), size = panels * k * PANEL;
    if (a->batch * a->height * a->width <= 0 || n <= 0) return DONE;
    if ((int64_t)PRODUCT_SCRATCH(a->width) + (int64_t)taps * size > c->scratch_bytes / 4) return BAD_CODE;
    float *packed = c->scratch + PRODUCT_SCRATCH(a->width);
    const float *w = AT(float, a->w);
    for (int32_t t = 0; t < taps; t++)
        for (int32_t p = 0; p < panels; p++)
            for (int32_t i = 0; i < k; i++) {
                float *to = packed + t * size + (p * k + i) * PANEL;
                const float *from = w + ((int64_t)i * n + p * PANEL) * taps + t;
                for (int32_t j = 0; j < PANEL; j++) to[j] = p * PANEL + j < n ? from[j * taps] : 0.0f;
            }
    int32_t rows = a->batch * a->height;
    for (int32_t row; (row = claim_apart(c, rows)) < rows;)
        for (int32_t t = 0; t < taps; t++) {
            int64_t line = (int64_t)row * a->stride + t / a->stride;
            const linear_args product = {
                .x = (int32_t)(a->x + (int64_t)row * a->width * k * 4), .ldx = k,
                .w = (int32_t)(uintptr_t)(packed + t * size), .bias = a->bias,
                .y = (int32_t)(a->y + (line * a->width * a->stride + t % a->stride) * n * 4), .ldy = a->stride * n,
                .m = a->width, .n = n, .k = k, .w_dtype = DTYPE_f32, .activation = a->activation};
            for (int32_t p = 0; p < panels; p++) multiply(&product, c->scratch, p, 0, a->width);
        }
    return DONE;
}
