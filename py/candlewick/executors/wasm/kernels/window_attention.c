/* Attention within square windows of a picture. A task is one head of one window: its keys and values are packed into panels
 * in thread scratch, so windows need no place of their own in memory, and positions beyond the picture cost no buffer.
 */
#include "attention.h"

enum { ROWS = 60 }; /* queries at once, a multiple of 12; a window of 7 x 7 in one go */

/* Where the query, key and value of each position of a window stand: `beyond` outside the picture. */
static void find_rows(const window_attention_args *a, int32_t window, const float **rows) {
    int32_t across = ceil_div(a->width, a->window), down = ceil_div(a->height, a->window), wide = 3 * a->n_head * a->d;
    int32_t batch = window / (across * down), y0 = window / across % down * a->window, x0 = window % across * a->window;
    const float *picture = AT(float, a->qkv) + (int64_t)batch * a->height * a->width * wide;
    for (int32_t y = y0; y < y0 + a->window; y++)
        for (int32_t x = x0; x < x0 + a->window; x++)
            *rows++ = y < a->height && x < a->width ? picture + ((int64_t)y * a->width + x) * wide : AT(float, a->outside);
}

/* 12 keys -> [d][12], and 12 rows of each value panel [padded][8]; keys from n on are 0. */
static void pack_twelve(const float *const *rows, int32_t first, int32_t n, int32_t d, int32_t padded, float *keys, float *values) {
    static const float nothing[4];
    int32_t here = least(PANEL, n - first);
    for (int32_t j = 0; j < PANEL; j += 4) {
        const float *row[4];
        for (int32_t i = 0; i < 4; i++) row[i] = rows[least(first + j + i, n - 1)] + d;
        int32_t c = 0;
        for (; c + 4 <= d; c += 4) {
            vec r0 = load(row[0] + c), r1 = load(row[1] + c), r2 = load(row[2] + c), r3 = load(row[3] + c);
            transpose4(&r0, &r1, &r2, &r3);
            store(keys + c * PANEL + j, r0);
            store(keys + (c + 1) * PANEL + j, r1);
            store(keys + (c + 2) * PANEL + j, r2);
            store(keys + (c + 3) * PANEL + j, r3);
        }
        for (; c < d; c++)
            for (int32_t i = 0; i < 4; i++) keys[c * PANEL + j + i] = row[i][c];
    }
    for (int32_t i = 0; i < PANEL; i++) {
        const float *v = i < here ? rows[first + i] + 2 * d : 0;
        for (int32_t c = 0; c < d; c += 4) {
            float *to = values + ((c / V_PANEL) * padded + first + i) * V_PANEL + c % V_PANEL;
            if (c + 4 <= d) store(to, load(v ? v + c : nothing));
            else
                for (int32_t t = 0; t < 4; t++) to[t] = v && c + t < d ? v[c + t] : 0.0f;
        }
        if (d % V_PANEL && d % V_PANEL <= 4) store(values + (d / V_PANEL * padded + first + i) * V_PANEL + 4, zero());
    }
}

int32_t kernel_window_attention(const window_attention_args *a, const Context *c) {
    int32_t n = a->window * a->window, d = a->d, padded = ceil_div(n, PANEL) * PANEL, keys_four = ceil_div(n, 4) * 4;
    int32_t width = ceil_div(d, V_PANEL) * V_PANEL, wide = 3 * a->n_head * d;
    int32_t across = ceil_div(a->width, a->window), down = ceil_div(a->height, a->window);
    int32_t windows = a->batch * across * down;
    if (windows <= 0 || a->n_head <= 0 || d <= 0) return DONE;
    if (n + padded * (d + width) + ROWS * (d + padded + width) > c->scratch_bytes / 4) return BAD_CODE;
    const float **rows = (const float **)c->scratch, **head_rows = rows;
    float *keys = c->scratch + ceil_div(n, 4) * 4, *values = keys + padded * d, *q = values + padded * width;
    float *scores = q + ROWS * d, *sums = scores + ROWS * padded;
    vec scale = splat(a->scale * LOG2E);
    float *y = AT(float, a->y);
    int32_t tasks = windows * a->n_head;
    for (int32_t task; (task = claim_apart(c, tasks)) < tasks;) {
        int32_t window = task / a->n_head, head = task % a->n_head;
        find_rows(a, window, rows);
        for (int32_t i = 0; i < n; i++) head_rows[i] = rows[i] + head * 3 * d;
        for (int32_t i = 0; i < n; i += PANEL) pack_twelve(head_rows, i, n, d, padded, keys + i * d, values);
        for (int32_t from = 0; from < n; from += ROWS) {
            int32_t here = least(ROWS, n - from), threes = ceil_div(here, 3) * 3, fours = ceil_div(here, 4) * 4;
            for (int32_t r = 0; r < here; r++) {
                const float *row = head_rows[from + r];
                int32_t i = 0;
                for (; i + 4 <= d; i += 4) store(q + r * d + i, mul(load(row + i), scale));
                for (; i < d; i++) q[r * d + i] = row[i] * (a->scale * LOG2E);
            }
            for (int32_t i = here * d; i < threes * d; i++) q[i] = 0.0f;
            for (int32_t j = 0; j < padded; j += PANEL) score_panel(q, d, keys + j * d, threes, scores + j, padded);
            for (int32_t i = 0; i < fours * width; i += 4) store(sums + i, zero());
            float total[ROWS];
            for (int32_t r = 0; r < here; r++) {
                float maximum = NOTHING;
                total[r] = 0.0f;
                if (a->bias) add_bias(scores + r * padded, AT(float, a->bias) + ((int64_t)head * n + from + r) * n, n);
                soften(scores + r * padded, n, keys_four, &maximum, &total[r]);
            }
            for (int32_t i = here * padded; i < fours * padded; i += 4) store(scores + i, zero());
            for (int32_t column = 0; column < width; column += V_PANEL)
                weigh_panel(scores, padded, values + column * padded, keys_four, fours, sums + column, width);
            for (int32_t r = 0; r < here; r++) {
                const float *base = head_rows[from + r] - head * 3 * d;
                if (base == AT(float, a->outside)) continue;
                int64_t position = (base - AT(float, a->qkv)) / wide;
                float *to = y + position * a->n_head * d + head * d, inverse = 1.0f / total[r];
                int32_t i = 0;
                for (; i + 4 <= d; i += 4) store(to + i, mul(load(sums + r * width + i), splat(inverse)));
                for (; i < d; i++) to[i] = sums[r * width + i] * inverse;
            }
        }
    }
    return DONE;
}
