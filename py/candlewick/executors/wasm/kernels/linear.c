/* y[m, n] = activation(x[m, k] . w[n, k] + bias[n]) + residual[m, n], w in panels of 12 columns (see pack.c).
 *
 * Many rows: a panel's block of k (24 KB of float32 at most) stays in L1 while the rows of x stream past it, three at a
 * time; half-precision panels are expanded into thread scratch first, once for all the rows of the task. Few rows
 * (decoding): weights are read once, straight from memory, and expanded in registers.
 * Threads claim tasks = panels x blocks of rows: whole panels first, then small pieces, so that all end together.
 */
#include "runtime.h"
#include "tiles.h"

TILE_12(1)
TILE_12(2)
TILE_12(3)

enum {
    K_BLOCK = 2048, /* rows of a panel taken at once: 96 KB of float32, which stream from L2 as fast as the tile takes them */
    ROW_BLOCK = 96, /* rows of x per partial-sum block and, in the last panels, per task; a multiple of 3 */
    GEMV_ROWS = 3,  /* up to here weights are expanded in registers */
};

INLINE vec activate(vec v, int32_t activation) {
    switch (activation) {
    case ACTIVATION_gelu: return gelu(v);
    case ACTIVATION_relu: return relu(v);
    case ACTIVATION_silu: return silu(v);
    }
    return v;
}

/* In place over rows of y that hold x . w + bias: activation, then + residual. `columns` of each row are written. */
static void finish(const float *from, int32_t ldf, float *y, int32_t ldy, const float *residual, int32_t ldr, int32_t rows,
                   int32_t columns, int32_t activation) {
    if (columns == PANEL && activation == ACTIVATION_gelu && !residual) { /* the common one, without a branch inside */
        for (int32_t r = 0; r < rows; r++, from += ldf, y += ldy) {
            vec v[3] = {load(from), load(from + 4), load(from + 8)};
            gelu_many(v, 3);
            FULLY for (int c = 0; c < 3; c++) store(y + 4 * c, v[c]);
        }
        return;
    }
    for (int32_t r = 0; r < rows; r++, from += ldf, y += ldy, residual += residual ? ldr : 0) {
        if (columns == PANEL) {
            for (int c = 0; c < PANEL; c += 4) {
                vec v = activate(load(from + c), activation);
                if (residual) v = add(v, load(residual + c));
                store(y + c, v);
            }
        } else {
            float line[PANEL];
            for (int c = 0; c < PANEL; c += 4) store(line + c, activate(load(from + c), activation));
            for (int32_t c = 0; c < columns; c++) y[c] = line[c] + (residual ? residual[c] : 0.0f);
        }
    }
}

/* `count` 16-bit values, a multiple of 12, to float32. */
static __attribute__((noinline)) void expand(const uint16_t *from, int32_t count, int32_t dtype, float *to) {
    vec mask = half_mask(), scale = splat(HALF_SCALE);
    FIX(scale);
    const float *end = to + count;
    if (dtype == DTYPE_f16)
        for (; to < end; to += 12, from += 12)
            FULLY for (int i = 0; i < 12; i += 4) store(to + i, mul(half_load(from + i, mask), scale));
    else
        for (; to < end; to += 12, from += 12)
            FULLY for (int i = 0; i < 12; i += 4) store(to + i, bfloat_load(from + i, mask));
}

/* All of x's rows [row, row + rows) times one panel. */
static void multiply(const linear_args *a, const Context *c, int32_t panel, int32_t row, int32_t rows) {
    float *block = c->scratch;                  /* K_BLOCK x 12, expanded weights */
    float *partial = block + K_BLOCK * PANEL;   /* rows x 12, sums between blocks of k, and edge columns */
    float bias[PANEL] __attribute__((aligned(16)));
    int32_t columns = least(PANEL, a->n - panel * PANEL), k = a->k;
    int32_t blocks = ceil_div(k, K_BLOCK), step = ceil_div(ceil_div(k, blocks), 4) * 4;
    for (int32_t i = 0; i < PANEL; i++) bias[i] = a->bias && i < columns ? AT(float, a->bias)[panel * PANEL + i] : 0.0f;
    int32_t weight_bytes = a->w_dtype == DTYPE_f32 ? 4 : 2;
    const char *weights = AT(char, a->w) + (uint32_t)panel * (uint32_t)k * PANEL * weight_bytes;
    float *y = AT(float, a->y) + (int64_t)row * a->ldy + panel * PANEL;
    const float *residual = a->residual ? AT(float, a->residual) + (int64_t)row * a->ldr + panel * PANEL : 0;
    const float *x = AT(float, a->x) + (int64_t)row * a->ldx;
    int direct = columns == PANEL; /* the tile may write 12 columns into y */
    int early = residual && direct && a->activation == ACTIVATION_none; /* start the sums from the residual */
    int more = !direct || a->activation != ACTIVATION_none || (residual && !early);
    for (int32_t from = 0; from < k; from += step) {
        int32_t depth = least(step, k - from);
        const float *w;
        if (a->w_dtype == DTYPE_f32) {
            w = (const float *)weights + from * PANEL;
        } else {
            expand((const uint16_t *)weights + from * PANEL, depth * PANEL, a->w_dtype, block);
            w = block;
        }
        int first = from == 0, last = from + depth == k;
        const float *init = !first ? partial : early ? residual : zeros;
        int32_t ldi = !first ? PANEL : early ? a->ldr : 0;
        float *out = last && direct ? y : partial;
        int32_t ldo = last && direct ? a->ldy : PANEL;
        const float *add_last = last ? bias : zeros;
        for (int32_t r = 0; r < rows; r += 3) {
            const float *from_x = x + (int64_t)r * a->ldx + from, *from_init = init + (int64_t)r * ldi;
            float *to = out + (int64_t)r * ldo;
            int32_t here = least(3, rows - r);
            if (here == 3) tile_3x12(from_x, a->ldx, w, depth, from_init, ldi, add_last, to, ldo);
            else if (here == 2) tile_2x12(from_x, a->ldx, w, depth, from_init, ldi, add_last, to, ldo);
            else tile_1x12(from_x, a->ldx, w, depth, from_init, ldi, add_last, to, ldo);
            if (last && more) /* while the tile is in L1 */
                finish(to, ldo, y + (int64_t)r * a->ldy, a->ldy, residual ? residual + (int64_t)r * a->ldr : 0, a->ldr, here,
                       columns, a->activation);
        }
    }
}

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

static void multiply_few(const linear_args *a, const float *x, int32_t ldx, int32_t panel) {
    float out[GEMV_ROWS * PANEL] __attribute__((aligned(16)));
    int32_t columns = least(PANEL, a->n - panel * PANEL);
    uint32_t offset = (uint32_t)panel * (uint32_t)a->k * PANEL;
#define PICK(R)                                                                                                          \
    if (a->w_dtype == DTYPE_f32) gemv_f32_##R(x, ldx, AT(float, a->w) + offset, a->k, splat(1.0f), out);                 \
    else if (a->w_dtype == DTYPE_f16) gemv_f16_##R(x, ldx, AT(uint16_t, a->w) + offset, a->k, splat(SCALE_SUM), out);    \
    else gemv_bf16_##R(x, ldx, AT(uint16_t, a->w) + offset, a->k, splat(1.0f), out);
    if (a->m == 1) { PICK(1) } else if (a->m == 2) { PICK(2) } else { PICK(3) }
#undef PICK
    if (a->bias)
        for (int32_t r = 0; r < a->m; r++)
            for (int32_t i = 0; i < columns; i++) out[r * PANEL + i] += AT(float, a->bias)[panel * PANEL + i];
    finish(out, PANEL, AT(float, a->y) + panel * PANEL, a->ldy,
           a->residual ? AT(float, a->residual) + panel * PANEL : 0, a->ldr, a->m, columns, a->activation);
}

int32_t kernel_linear(const linear_args *a, const Context *c) {
    int32_t m = a->m, panels = ceil_div(a->n, PANEL);
    if (m <= 0 || panels <= 0) return DONE;
    if (m <= GEMV_ROWS && (int64_t)m * a->k * 4 <= c->scratch_bytes) {
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
            for (int32_t p = from; p < least(from + pieces, panels); p++) multiply_few(a, x, ldx, p);
        return DONE;
    }
    /* A task is a panel with up to `room` rows; the last panels are cut into ROW_BLOCK rows to end together. */
    int32_t room = (c->scratch_bytes / 4 / PANEL - K_BLOCK) / 3 * 3;
    if (room < 3) return BAD_CODE;
    int32_t tall = least(room, ceil_div(ceil_div(m, ceil_div(m, room)), 3) * 3), stacks = ceil_div(m, tall);
    int32_t whole = c->n_threads == 1 ? panels : most(0, panels - 2 * c->n_threads) , blocks = ceil_div(m, ROW_BLOCK);
    int32_t large = whole * stacks, tasks = large + (panels - whole) * blocks;
    for (int32_t task; (task = claim(1)) < tasks;) {
        if (task < large) {
            int32_t row = task % stacks * tall;
            multiply(a, c, task / stacks, row, least(tall, m - row));
        } else {
            int32_t row = (task - large) % blocks * ROW_BLOCK;
            multiply(a, c, whole + (task - large) / blocks, row, least(ROW_BLOCK, m - row));
        }
    }
    return DONE;
}
