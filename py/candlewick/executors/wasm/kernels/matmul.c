/* y[m, n] = a[m, k] . b[k, n] for two activations, batch by batch: twelve columns of b at a time are packed into thread scratch
 * and multiplied like a panel of a weight. b's element (i, j) stands at i b_k + j b_n.
 */
#include "product.h"

static void pack_columns(const float *b, int32_t b_k, int32_t b_n, int32_t k, int32_t columns, float *to) {
    if (b_n == 1 && columns == PANEL) {
        for (int32_t i = 0; i < k; i++, b += b_k, to += PANEL)
            for (int j = 0; j < PANEL; j += 4) store(to + j, load(b + j));
        return;
    }
    int32_t done = 0;
    if (b_k == 1 && columns == PANEL)
        for (; done + 4 <= k; done += 4)
            for (int32_t j = 0; j < PANEL; j += 4) {
                const float *from = b + (int64_t)j * b_n + done;
                vec r0 = load(from), r1 = load(from + b_n), r2 = load(from + 2 * (int64_t)b_n), r3 = load(from + 3 * (int64_t)b_n);
                transpose4(&r0, &r1, &r2, &r3);
                store(to + done * PANEL + j, r0);
                store(to + (done + 1) * PANEL + j, r1);
                store(to + (done + 2) * PANEL + j, r2);
                store(to + (done + 3) * PANEL + j, r3);
            }
    for (int32_t i = done; i < k; i++)
        for (int32_t j = 0; j < PANEL; j++)
            to[i * PANEL + j] = j < columns ? b[(int64_t)i * b_k + (int64_t)j * b_n] : 0.0f;
}

int32_t kernel_matmul(const matmul_args *a, const Context *c) {
    int32_t m = a->m, panels = ceil_div(a->n, PANEL), room = c->scratch_bytes / 4 - PRODUCT_SCRATCH(ROW_BLOCK);
    if (a->batch <= 0 || m <= 0 || panels <= 0) return DONE;
    if (a->k > room / PANEL) return BAD_CODE;
    float *packed = c->scratch + PRODUCT_SCRATCH(ROW_BLOCK);
    int32_t tall = ROW_BLOCK * 16;
    while (tall > ROW_BLOCK && a->batch * panels * ceil_div(m, tall) < 8 * c->n_threads) tall /= 2;
    int32_t stacks = ceil_div(m, tall), tasks = a->batch * panels * stacks;
    for (int32_t task; (task = claim_apart(c, tasks)) < tasks;) {
        int32_t first = task % stacks * tall, panel = task / stacks % panels, batch = task / stacks / panels;
        int32_t column = panel * PANEL, columns = least(PANEL, a->n - column);
        pack_columns(AT(float, a->b) + (int64_t)batch * a->b_batch + (int64_t)column * a->b_n, a->b_k, a->b_n, a->k, columns,
                     packed);
        const linear_args product = {.x = (int32_t)(a->a + (int64_t)batch * a->a_batch * 4), .ldx = a->lda,
                                     .w = (int32_t)(uintptr_t)packed,
                                     .y = (int32_t)(a->y + ((int64_t)batch * a->y_batch + column) * 4), .ldy = a->ldy,
                                     .m = m, .n = columns, .k = a->k, .w_dtype = DTYPE_f32};
        for (int32_t row = first; row < least(m, first + tall); row += ROW_BLOCK)
            multiply(&product, c->scratch, 0, row, least(ROW_BLOCK, least(m, first + tall) - row));
    }
    return DONE;
}
