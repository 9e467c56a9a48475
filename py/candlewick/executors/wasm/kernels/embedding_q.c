/* y[i] = row ids[i] of a block-quantised table; an id outside the table is clamped into it. The whole panel is made plain, by
 * the code that products use, and one of its eight rows picked. */
#include "quant.h"

int32_t kernel_embedding_q(const embedding_q_args *a, const Context *c) {
    QType t = q_type(a->w_dtype);
    int32_t n = a->n;
    if (!t.bits || n % q_block(t) || n / QBLOCK * plain_piece_bytes(t) > c->scratch_bytes) return BAD_CODE;
    Range rows = share(c, a->m, 1);
    for (int32_t r = rows.from; r < rows.to; r++) {
        int32_t id = most(0, least(AT(int32_t, a->ids)[r], a->n_rows - 1)), lane = id % QPANEL;
        const int8_t *from = (const int8_t *)c->scratch;
        unpack_panel(a->w_dtype, AT(uint8_t, a->table) + (uint32_t)(id / QPANEL) * q_panel_bytes(t, n), n, (int8_t *)c->scratch);
        float *y = AT(float, a->y) + (int64_t)r * n;
        for (int32_t piece = 0; piece < n / QBLOCK; piece++, from += plain_piece_bytes(t), y += QBLOCK) {
            for (int32_t k = 0; k < QBLOCK; k++) {
                int32_t group = k / 4, b = k % 4;
                int32_t at = NARROW(t.bits) ? 32 * group + 4 * lane + b : 32 * group + 16 * (b & 1) + 2 * lane + b / 2;
                const float *numbers = (const float *)(from + 256) + (t.subs == 2 ? k / 16 * 16 : 0) + lane;
                y[k] = (numbers[0] * from[at] + numbers[QPANEL]) * X_SCALE;
            }
        }
    }
    return DONE;
}
