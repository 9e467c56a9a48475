/* The inner part of every matrix product: rows of x times one panel of a weight, with its epilogue. */
#include "product.h"
#include "tiles.h"

TILE(1, 3)
TILE(2, 3)
TILE(3, 3)
TILE(1, 2)
TILE(2, 2)
TILE(4, 2)
TILE(1, 1)
TILE(2, 1)
TILE(3, 1)
TILE(6, 1)

typedef void Tile(const float *x, int32_t ldx, const float *panel, int32_t k, const float *init, int32_t ldi, const float *bias,
                  float *out, int32_t ldo);
/* The tile for as many as possible of `rows` rows, with 1, 2 or 3 vectors of columns; `taken` says how many. */
static Tile *pick(int32_t rows, int32_t vecs, int32_t *taken) {
#define PICK(ROWS, VECS) return *taken = ROWS, tile_##ROWS##_##VECS
    if (vecs == 3) {
        if (rows >= 3) PICK(3, 3);
        if (rows == 2) PICK(2, 3);
        PICK(1, 3);
    }
    if (vecs == 2) {
        if (rows >= 4) PICK(4, 2);
        if (rows >= 2) PICK(2, 2);
        PICK(1, 2);
    }
    if (rows >= 6) PICK(6, 1);
    if (rows >= 3) PICK(3, 1);
    if (rows == 2) PICK(2, 1);
    PICK(1, 1);
#undef PICK
}

INLINE vec activate(vec v, int32_t activation) {
    switch (activation) {
    case ACTIVATION_gelu: return gelu(v);
    case ACTIVATION_relu: return relu(v);
    case ACTIVATION_silu: return silu(v);
    }
    return v;
}

/* Rows of y take on their values: from holds x . w + bias, then activation, + residual, final. `columns` of each are written;
 * y may be where `from` is. */
void finish(const float *from, int32_t ldf, float *y, int32_t ldy, const float *residual, int32_t ldr, int32_t rows,
            int32_t columns, int32_t activation, int32_t final) {
    if (!residual && activation == ACTIVATION_none) {
        activation = final;
        final = ACTIVATION_none;
    }
    if (columns == PANEL && activation == ACTIVATION_gelu && !residual && !final) { /* the common one, no branch inside */
        for (int32_t r = 0; r < rows; r++, from += ldf, y += ldy) {
            vec v[3] = {load(from), load(from + 4), load(from + 8)};
            gelu_many(v, 3);
            FULLY for (int c = 0; c < 3; c++) store(y + 4 * c, v[c]);
        }
        return;
    }
    for (int32_t r = 0; r < rows; r++, from += ldf, y += ldy, residual += residual ? ldr : 0) {
        int32_t c = 0;
        for (; c + 4 <= columns; c += 4) {
            vec v = activate(load(from + c), activation);
            if (residual) v = add(v, load(residual + c));
            store(y + c, activate(v, final));
        }
        if (c < columns) {
            float line[4] __attribute__((aligned(16))) = {0.0f, 0.0f, 0.0f, 0.0f};
            for (int32_t i = c; i < columns; i++) line[i - c] = from[i];
            store(line, activate(load(line), activation));
            for (int32_t i = c; residual && i < columns; i++) line[i - c] += residual[i];
            store(line, activate(load(line), final));
            for (int32_t i = c; i < columns; i++) y[i] = line[i - c];
        }
    }
}

void finish_line(float *y, const float *residual, int32_t count, int32_t activation, int32_t final) {
    if (!activation && !final && !residual) return;
    int32_t lines = count / PANEL, done = lines * PANEL;
    finish(y, PANEL, y, PANEL, residual, PANEL, lines, PANEL, activation, final);
    if (done < count)
        finish(y + done, PANEL, y + done, PANEL, residual ? residual + done : 0, PANEL, 1, count - done, activation, final);
}

void zero_rows(const Context *c, float *y, int32_t ldy, int32_t rows, int32_t n) {
    Range mine = share(c, rows, 1);
    for (int32_t r = mine.from; r < mine.to; r++)
        for (int32_t i = 0; i < n; i++) y[(int64_t)r * ldy + i] = 0.0f;
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

void multiply(const linear_args *a, float *scratch, int32_t panel, int32_t row, int32_t rows) {
    float *block = scratch;                     /* K_BLOCK x 12, expanded weights */
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
    int32_t vecs = ceil_div(columns, 4);
    int direct = columns % 4 == 0; /* the tile may write its columns into y */
    int early = residual && direct && a->activation == ACTIVATION_none; /* start the sums from the residual */
    int more = !direct || a->activation != ACTIVATION_none || a->final != ACTIVATION_none || (residual && !early);
    const float *late = early ? 0 : residual;
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
        for (int32_t r = 0, here; r < rows; r += here) {
            Tile *tile = pick(rows - r, vecs, &here);
            float *to = out + (int64_t)r * ldo;
            tile(x + (int64_t)r * a->ldx + from, a->ldx, w, depth, init + (int64_t)r * ldi, ldi, add_last, to, ldo);
            if (last && more) /* while the tile is in L1 */
                finish(to, ldo, y + (int64_t)r * a->ldy, a->ldy, late ? late + (int64_t)r * a->ldr : 0, a->ldr, here,
                       columns, a->activation, a->final);
        }
    }
}
