/* y[m, n] = final(activation(x[m, k] . w[n, k] + bias[n]) + residual[m, n]), w in panels of 12 columns (see pack.c).
 *
 * Many rows: a panel's block of k (24 KB of float32 at most) stays in L1 while the rows of x stream past it, three at a
 * time; half-precision panels are expanded into thread scratch first, once for all the rows of the task. Few rows
 * (decoding, one text or several): weights are read once, straight from memory, and expanded in registers.
 * Threads claim tasks = panels x blocks of rows: whole panels first, then small pieces, so that all end together.
 * With float32 panels and many rows it is the other way round: a block of rows stays in L2 while all panels pass.
 */
#include "product.h"
#include "tiles.h"

enum {
    GEMV_ROWS = 3, /* rows that meet a weight while it is in a register */
    FEW_HALF = 8,  /* up to here 16-bit weights are expanded again for every three rows, which is quicker than through memory */
};

/* Few rows: R rows of x (ldx apart) against one panel of 32-bit or 16-bit weights, the sums times `scale`. One row
 * alternates between two sets of sums, so that enough additions are under way. */
#define GEMV_STEP(R, SET, LOAD, OFFSET)                                                                                  \
    {                                                                                                                    \
        vec b0 = LOAD(w + PANEL * (OFFSET), mask), b1 = LOAD(w + PANEL * (OFFSET) + 4, mask),                            \
            b2 = LOAD(w + PANEL * (OFFSET) + 8, mask);                                                                   \
        FULLY for (int r = 0; r < R; r++) {                                                                              \
            vec a = load_splat(row[r] + (OFFSET));                                                                       \
            acc[SET][r][0] = madd(a, b0, acc[SET][r][0]);                                                                \
            acc[SET][r][1] = madd(a, b1, acc[SET][r][1]);                                                                \
            acc[SET][r][2] = madd(a, b2, acc[SET][r][2]);                                                                \
            FIX_3(acc[SET][r]);                                                                                          \
        }                                                                                                                \
    }
#define GEMV(R, NAME, TYPE, LOAD)                                                                                        \
    static __attribute__((noinline)) void gemv_##NAME##_##R(const float *x, int32_t ldx, const TYPE *w, int32_t k,       \
                                                            vec scale, float *out) {                                     \
        enum { SETS = R == 1 ? 2 : 1 };                                                                                   \
        vec acc[SETS][R][3], mask = half_mask();                                                                         \
        const float *row[R];                                                                                             \
        FULLY for (int r = 0; r < R; r++) {                                                                              \
            FULLY for (int s = 0; s < SETS; s++) acc[s][r][0] = acc[s][r][1] = acc[s][r][2] = zero();                    \
            row[r] = x + r * ldx;                                                                                        \
            FIX(row[r]);                                                                                                 \
        }                                                                                                                \
        int32_t left = k;                                                                                                \
        for (; left >= 4; left -= 4) {                                                                                   \
            FULLY for (int i = 0; i < 4; i++) GEMV_STEP(R, i % SETS, LOAD, i)                                            \
            w += 4 * PANEL;                                                                                              \
            FIX(w);                                                                                                      \
            FULLY for (int r = 0; r < R; r++) {                                                                          \
                row[r] += 4;                                                                                             \
                FIX(row[r]);                                                                                             \
            }                                                                                                            \
        }                                                                                                                \
        for (; left > 0; left--) {                                                                                       \
            GEMV_STEP(R, 0, LOAD, 0)                                                                                     \
            w += PANEL;                                                                                                  \
            FULLY for (int r = 0; r < R; r++) row[r]++;                                                                  \
        }                                                                                                                \
        FULLY for (int r = 0; r < R; r++)                                                                                \
            FULLY for (int c = 0; c < 3; c++)                                                                            \
                store(out + PANEL * r + 4 * c,                                                                           \
                      mul(SETS == 2 ? add(acc[0][r][c], acc[SETS - 1][r][c]) : acc[0][r][c], scale));                    \
    }

#define GEMV_ALL(R) GEMV(R, f32, float, float_load) GEMV(R, f16, uint16_t, half_load) GEMV(R, bf16, uint16_t, bfloat_load)
GEMV_ALL(1)
GEMV_ALL(2)
GEMV_ALL(3)

/* half_load leaves the factor 2^112 out. x takes 2^60 of it and the sums 2^52: neither overflows nor becomes subnormal. */
#define SCALE_X 0x1p60f
#define SCALE_SUM 0x1p52f

static void multiply_few(const linear_args *a, const float *x, int32_t ldx, int32_t panel, int32_t row, int32_t rows) {
    float out[GEMV_ROWS * PANEL] __attribute__((aligned(16)));
    int32_t columns = least(PANEL, a->n - panel * PANEL);
    uint32_t offset = (uint32_t)panel * (uint32_t)a->k * PANEL;
    x += (int64_t)row * ldx;
#define PICK(R)                                                                                                          \
    if (a->w_dtype == DTYPE_f32) gemv_f32_##R(x, ldx, AT(float, a->w) + offset, a->k, splat(1.0f), out);                 \
    else if (a->w_dtype == DTYPE_f16) gemv_f16_##R(x, ldx, AT(uint16_t, a->w) + offset, a->k, splat(SCALE_SUM), out);    \
    else gemv_bf16_##R(x, ldx, AT(uint16_t, a->w) + offset, a->k, splat(1.0f), out);
    if (rows == 1) { PICK(1) } else if (rows == 2) { PICK(2) } else { PICK(3) }
#undef PICK
    if (a->bias)
        for (int32_t r = 0; r < rows; r++)
            for (int32_t i = 0; i < columns; i++) out[r * PANEL + i] += AT(float, a->bias)[panel * PANEL + i];
    finish(out, PANEL, AT(float, a->y) + (int64_t)row * a->ldy + panel * PANEL, a->ldy,
           a->residual ? AT(float, a->residual) + (int64_t)row * a->ldr + panel * PANEL : 0, a->ldr, rows, columns,
           a->activation, a->final);
}

int32_t kernel_linear(const linear_args *given, const Context *c) {
    linear_args counted = *given;
    const linear_args *a = &counted;
    if (given->count) {
        counted.m = most(0, least(*AT(int32_t, given->count), given->m));
        zero_rows(c, AT(float, a->y) + (int64_t)a->m * a->ldy, a->ldy, given->m - a->m, a->n);
    }
    int32_t m = a->m, panels = ceil_div(a->n, PANEL);
    if (m <= 0 || panels <= 0) return DONE;
    if (m <= (a->w_dtype == DTYPE_f32 ? GEMV_ROWS : FEW_HALF) && (int64_t)m * a->k * 4 <= c->scratch_bytes) {
        const float *x = AT(float, a->x);
        int32_t ldx = a->ldx;
        if (a->w_dtype == DTYPE_f16) { /* a scaled copy for every thread: k is small beside n x k weights */
            for (int32_t r = 0; r < m; r++)
                for (int32_t i = 0; i < a->k; i++) c->scratch[r * a->k + i] = x[(int64_t)r * ldx + i] * SCALE_X;
            x = c->scratch;
            ldx = a->k;
        }
        int32_t pieces = most(1, panels / (4 * c->n_threads));
        for (int32_t from; (from = claim(pieces)) < panels;)
            for (int32_t p = from; p < least(from + pieces, panels); p++)
                for (int32_t row = 0, rows; row < m; row += rows) {
                    rows = m - row == 4 ? 2 : least(GEMV_ROWS, m - row); /* 5 as 3 and 2, 4 as 2 and 2 */
                    multiply_few(a, x, ldx, p, row, rows);
                }
        return DONE;
    }
    /* A task is a panel with up to `room` rows; the last panels are cut into ROW_BLOCK rows to end together. */
    int32_t room = (c->scratch_bytes / 4 / PANEL - K_BLOCK) / 3 * 3;
    if (room < 3) return BAD_CODE;
    if (a->w_dtype == DTYPE_f32 && m >= ROW_BLOCK * 4 * c->n_threads) {
        int32_t tall = m >= ROW_BLOCK * 32 * c->n_threads ? ROW_BLOCK : ROW_BLOCK / 2, row_blocks = ceil_div(m, tall);
        for (int32_t task; (task = claim_apart(c, row_blocks)) < row_blocks;)
            for (int32_t p = 0; p < panels; p++) multiply(a, c->scratch, p, task * tall, least(tall, m - task * tall));
        return DONE;
    }
    int32_t tall = least(room, ceil_div(ceil_div(m, ceil_div(m, room)), 3) * 3), stacks = ceil_div(m, tall);
    int32_t whole = c->n_threads == 1 ? panels : most(0, panels - 2 * c->n_threads) , blocks = ceil_div(m, ROW_BLOCK);
    int32_t large = whole * stacks, tasks = large + (panels - whole) * blocks;
    for (int32_t task; (task = claim(1)) < tasks;) {
        if (task < large) {
            int32_t row = task % stacks * tall;
            multiply(a, c->scratch, task / stacks, row, least(tall, m - row));
        } else {
            int32_t row = (task - large) % blocks * ROW_BLOCK;
            multiply(a, c->scratch, whole + (task - large) / blocks, row, least(ROW_BLOCK, m - row));
        }
    }
    return DONE;
}
