/* linear with block-quantised weights (quant.h). y = final(activation(x . w + bias) + residual), as for linear; or with `times`
 * y = silu(x . w) (x . times). With `norm`, x goes through an rms_norm first.
 *
 * One row (decoding): every thread normalises and quantises x for itself, which is less work than a barrier, and walks panels
 * straight from memory. More rows: the threads share that work, lay the rows into `scratch` and meet; then each takes panels,
 * makes them plain in its own scratch, and lets all rows pass. */
#include "norm.h"
#include "quant.h"

/* Sums of a panel, [rows][8], become y[row .. row + rows][panel]; by: the sums of `times`, or 0. */
static void finish_panel(const linear_q_args *a, float *sums, const float *by, int32_t panel, int32_t row, int32_t rows) {
    int32_t column = panel * QPANEL, columns = least(QPANEL, a->n - column);
    float *y = AT(float, a->y) + (int64_t)row * a->ldy + column;
    if (by)
        for (int32_t i = 0; i < QPANEL * rows; i += 4) store(sums + i, mul(silu(load(sums + i)), load(by + i)));
    if (a->bias)
        for (int32_t r = 0; r < rows; r++)
            for (int32_t i = 0; i < columns; i++) sums[QPANEL * r + i] += AT(float, a->bias)[column + i];
    finish(sums, QPANEL, y, a->ldy, a->residual ? AT(float, a->residual) + (int64_t)row * a->ldr + column : 0, a->ldr, rows,
           columns, a->activation, a->final);
}

/* Row r of x, normalised into `room` if asked for, as blocks of a form. */
static void prepare_row(const linear_q_args *a, int32_t r, int32_t form, float *room, void *to) {
    const float *x = AT(float, a->x) + (int64_t)r * a->ldx;
    if (a->norm) {
        rms_norm_row(x, AT(float, a->norm), room, a->k, a->eps);
        x = room;
    }
    quantise_row(x, a->k, form, to);
}

static int32_t one_row(const linear_q_args *a, const Context *c, QType t) {
    int32_t panels = ceil_div(a->n, QPANEL), form = x_form(t, 1), x_bytes = x_row_bytes(form, a->k);
    if (x_bytes + (a->norm ? 4 * a->k : 0) > c->scratch_bytes) return BAD_CODE;
    prepare_row(a, 0, form, c->scratch + x_bytes / 4, c->scratch);
    uint32_t stride = q_panel_bytes(t, a->k);
    const uint8_t *w = AT(uint8_t, a->w), *times = AT(uint8_t, a->times);
    float sums[2 * QPANEL] __attribute__((aligned(16)));
    for (int32_t p; (p = claim_apart(c, panels)) < panels;) {
        vector_panel(a->w_dtype, c->scratch, w + (uint32_t)p * stride, a->k, sums);
        if (times) vector_panel(a->w_dtype, c->scratch, times + (uint32_t)p * stride, a->k, sums + QPANEL);
        finish_panel(a, sums, times ? sums + QPANEL : 0, p, 0, 1);
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
    int32_t plain_bytes = a->k / QBLOCK * plain_piece_bytes(t);
    if (!a->scratch || most(plain_bytes, 4 * a->k) * (a->times ? 2 : 1) > c->scratch_bytes) return BAD_CODE;
    char *x = AT(char, a->scratch);
    Range mine = share(c, m, 1);
    for (int32_t r = mine.from; r < mine.to; r++) prepare_row(a, r, form, c->scratch, x + (uint32_t)r * (uint32_t)row_bytes);
    int32_t stop = meet(c);
    if (stop) return stop;
    uint32_t stride = q_panel_bytes(t, a->k);
    const uint8_t *times = AT(uint8_t, a->times);
    int8_t *plain = (int8_t *)c->scratch;
    float sums[2][4 * QPANEL] __attribute__((aligned(16)));
    for (int32_t p; (p = claim_apart(c, panels)) < panels;) {
        unpack_panel(a->w_dtype, AT(uint8_t, a->w) + (uint32_t)p * stride, a->k, plain);
        if (times) unpack_panel(a->w_dtype, times + (uint32_t)p * stride, a->k, plain + plain_bytes);
        for (int32_t r = 0, here; r < m; r += here) {
            const char *from = x + (uint32_t)r * (uint32_t)row_bytes;
            here = tile_rows(a->w_dtype, from, m - r, plain, a->k, sums[0]);
            if (times) tile_rows(a->w_dtype, from, m - r, plain + plain_bytes, a->k, sums[1]);
            finish_panel(a, sums[0], times ? sums[1] : 0, p, r, here);
        }
    }
    return DONE;
}
