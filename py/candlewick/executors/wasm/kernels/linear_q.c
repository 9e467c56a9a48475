/* linear with block-quantised weights (quant.h). y = final(activation(x . w + bias) + residual), as for linear.
 *
 * One row (decoding): every thread quantises x for itself, which is less work than a barrier, and walks panels straight from
 * memory. More rows: the threads share the quantisation in `scratch` and meet; then each takes panels, makes them plain in its
 * own scratch, and lets all rows pass. */
#include "quant.h"

/* y[row .. row + rows][panel] from sums[rows][8]. */
static void finish_panel(const linear_q_args *a, float *sums, int32_t panel, int32_t row, int32_t rows) {
    int32_t column = panel * QPANEL, columns = least(QPANEL, a->n - column);
    if (a->bias)
        for (int32_t r = 0; r < rows; r++)
            for (int32_t i = 0; i < columns; i++) sums[QPANEL * r + i] += AT(float, a->bias)[column + i];
    finish(sums, QPANEL, AT(float, a->y) + (int64_t)row * a->ldy + column, a->ldy,
           a->residual ? AT(float, a->residual) + (int64_t)row * a->ldr + column : 0, a->ldr, rows, columns, a->activation,
           a->final);
}

static int32_t one_row(const linear_q_args *a, const Context *c, QType t) {
    int32_t panels = ceil_div(a->n, QPANEL);
    int32_t form = x_form(t, 1);
    if (x_row_bytes(form, a->k) > c->scratch_bytes) return BAD_CODE;
    quantise_row(AT(float, a->x), a->k, form, c->scratch);
    uint32_t stride = q_panel_bytes(t, a->k);
    const uint8_t *w = AT(uint8_t, a->w);
    float sums[QPANEL] __attribute__((aligned(16)));
    int32_t pieces = most(1, panels / (4 * c->n_threads));
    for (int32_t from; (from = claim(pieces)) < panels;) {
        for (int32_t p = from; p < least(from + pieces, panels); p++) {
            vector_panel(a->w_dtype, c->scratch, w + (uint32_t)p * stride, a->k, sums);
            finish_panel(a, sums, p, 0, 1);
        }
    }
    return DONE;
}

int32_t kernel_linear_q(const linear_q_args *a, const Context *c) {
    QType t = q_type(a->w_dtype);
    if (!t.bits || a->k % q_block(t)) return BAD_CODE;
    int32_t m = a->count ? most(0, least(*AT(int32_t, a->count), a->m)) : a->m;
    if (m < a->m) zero_rows(c, AT(float, a->y) + (int64_t)m * a->ldy, a->ldy, a->m - m, a->n);
    if (m <= 0 || a->n <= 0) return DONE;
    if (m == 1) return one_row(a, c, t);
    int32_t panels = ceil_div(a->n, QPANEL), form = x_form(t, m), row_bytes = x_row_bytes(form, a->k);
    if (!a->scratch || a->k / QBLOCK * plain_piece_bytes(t) > c->scratch_bytes) return BAD_CODE;
    char *x = AT(char, a->scratch);
    Range mine = share(c, m, 1);
    for (int32_t r = mine.from; r < mine.to; r++)
        quantise_row(AT(float, a->x) + (int64_t)r * a->ldx, a->k, form, x + (uint32_t)r * (uint32_t)row_bytes);
    int32_t stop = meet(c);
    if (stop) return stop;
    uint32_t stride = q_panel_bytes(t, a->k);
    float sums[4 * QPANEL] __attribute__((aligned(16)));
    for (int32_t p; (p = claim(1)) < panels;) {
        unpack_panel(a->w_dtype, AT(uint8_t, a->w) + (uint32_t)p * stride, a->k, (int8_t *)c->scratch);
        for (int32_t r = 0, here; r < m; r += here) {
            here = tile_rows(a->w_dtype, x + (uint32_t)r * (uint32_t)row_bytes, m - r, (int8_t *)c->scratch, a->k, sums);
            finish_panel(a, sums, p, r, here);
        }
    }
    return DONE;
}
