/* Attention for few queries (decoding): keys and values are read in place, once for all the query heads that share them.
 * Threads claim key heads, or ranges of keys where heads are too few for the threads.
 */
#include "attention.h"

enum { FEW_KEYS = 256 }; /* keys between two updates of the running softmax: 64 KB of each at 64 dimensions */

/* scores[i] = q . k[i] for `keys` rows of k, four at a time; writes up to three scores too many (room is left). */
static __attribute__((noinline)) void score_keys(const float *q, const float *k, int32_t k_row, int32_t keys, int32_t d,
                                                 float *scores) {
    for (int32_t i = 0; i < keys; i += 4) {
        const float *k0 = k + (int64_t)i * k_row, *k1 = i + 1 < keys ? k0 + k_row : k0, *k2 = i + 2 < keys ? k1 + k_row : k0,
                    *k3 = i + 3 < keys ? k2 + k_row : k0;
        vec s0 = zero(), s1 = s0, s2 = s0, s3 = s0;
        int32_t j = 0;
        for (; j + 4 <= d; j += 4) {
            vec x = load(q + j);
            s0 = madd(load(k0 + j), x, s0);
            s1 = madd(load(k1 + j), x, s1);
            s2 = madd(load(k2 + j), x, s2);
            s3 = madd(load(k3 + j), x, s3);
        }
        transpose4(&s0, &s1, &s2, &s3);
        vec s = add(add(s0, s1), add(s2, s3));
        for (; j < d; j++)
            s = madd(wasm_f32x4_make(k0[j], k1[j], k2[j], k3[j]), load_splat(q + j), s);
        store(scores + i, s);
    }
}

/* sums[d] += p[keys] . v[keys, d] */
static __attribute__((noinline)) void weigh_values(const float *p, const float *v, int32_t v_row, int32_t keys, int32_t d,
                                                   float *sums) {
    int32_t i = 0;
    for (; i + 4 <= keys; i += 4, v += 4 * (int64_t)v_row) {
        vec p0 = load_splat(p + i), p1 = load_splat(p + i + 1), p2 = load_splat(p + i + 2), p3 = load_splat(p + i + 3);
        const float *v1 = v + v_row, *v2 = v1 + v_row, *v3 = v2 + v_row;
        int32_t j = 0;
        for (; j + 4 <= d; j += 4) {
            vec low = madd(load(v + j), p0, mul(load(v1 + j), p1));
            vec high = madd(load(v2 + j), p2, mul(load(v3 + j), p3));
            store(sums + j, add(load(sums + j), add(low, high)));
        }
        for (; j < d; j++) sums[j] += v[j] * p[i] + v1[j] * p[i + 1] + v2[j] * p[i + 2] + v3[j] * p[i + 3];
    }
    for (; i < keys; i++, v += v_row)
        for (int32_t j = 0; j < d; j++) sums[j] += v[j] * p[i];
}

/* What a task of attend_few keeps of each query of each head of the group: weighted sums (d), maximum, sum. */
typedef struct { float *sums, *maximum, *total; } State;
INLINE State state_of(float *record, int32_t d, int32_t s) {
    float *at = record + (int64_t)s * (d + 2);
    return (State){at, at + d, at + d + 1};
}

static void write_few(const attention_args *a, int32_t kv, int32_t s, const float *sums, float total) {
    int32_t head = kv * a->n_group + s / a->n_q, i = s % a->n_q;
    float *row = AT(float, a->y) + (int64_t)head * a->y_head + (int64_t)i * a->y_row;
    float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int32_t j = 0; j < a->d; j++) row[j] = sums[j] * inverse;
}

/* Keys [from, to) of one key head for all the queries of its group, into `record`. */
static void attend_range(const attention_args *a, int32_t kv, int32_t start, int32_t from, int32_t to, float *record,
                         float *q, float *scores) {
    int32_t d = a->d, states = a->n_group * a->n_q;
    for (int32_t s = 0; s < states; s++) {
        int32_t head = kv * a->n_group + s / a->n_q, i = s % a->n_q;
        const float *row = AT(float, a->q) + (int64_t)head * a->q_head + (int64_t)i * a->q_row;
        State state = state_of(record, d, s);
        for (int32_t j = 0; j < d; j++) {
            q[s * d + j] = row[j] * (a->scale * LOG2E);
            state.sums[j] = 0.0f;
        }
        *state.maximum = NOTHING;
        *state.total = 0.0f;
    }
    const float *k = AT(float, a->k) + (int64_t)kv * a->k_head, *v = AT(float, a->v) + (int64_t)kv * a->v_head;
    for (int32_t first = from; first < to; first += FEW_KEYS)
        for (int32_t s = 0; s < states; s++) {
            int32_t keys = least(least(FEW_KEYS, to - first), visible(a, start, s % a->n_q) - first);
            if (keys <= 0) continue;
            State state = state_of(record, d, s);
            score_keys(q + s * d, k + (int64_t)first * a->k_row, a->k_row, keys, d, scores);
            if (a->bias) /* state s is query s % n_q of head kv n_group + s / n_q */
                add_bias(scores, AT(float, a->bias) + (int64_t)(kv * a->n_group + s / a->n_q) * a->bias_head +
                         (int64_t)(s % a->n_q) * a->bias_row + first, keys);
            float factor = soften(scores, keys, ceil_div(keys, 4) * 4, state.maximum, state.total);
            if (factor != 1.0f)
                for (int32_t j = 0; j < d; j++) state.sums[j] *= factor;
            weigh_values(scores, v + (int64_t)first * a->v_row, a->v_row, keys, d, state.sums);
        }
}

/* Into how many ranges to cut the keys so that heads x ranges keep all threads busy; one where that is so already. */
static int32_t ranges_for(const Context *c, int32_t kv_heads, int32_t keys) {
    int32_t ranges = 1;
    while (kv_heads * ranges % c->n_threads && kv_heads * ranges < 4 * c->n_threads && keys >= 128 * (ranges + 1)) ranges++;
    return ranges;
}

int32_t attend_few(const attention_args *a, const Context *c, int32_t start) {
    int32_t d = a->d, states = a->n_group * a->n_q, kv_heads = a->n_head / a->n_group;
    int32_t keys = visible(a, start, a->n_q - 1), ranges = ranges_for(c, kv_heads, keys);
    int64_t record_size = (int64_t)states * (d + 2), own_size = record_size + (int64_t)states * d + FEW_KEYS + 4;
    /* with several ranges their records stand in the upper half of the scratch of thread 0 until all are there */
    int64_t half = c->scratch_bytes / 8;
    if (own_size > half || kv_heads * ranges * record_size > half) ranges = 1;
    if (own_size * 4 > c->scratch_bytes) return BAD_CODE;
    float *own = c->scratch, *q = own + record_size, *scores = q + (int64_t)states * d;
    float *records = c->scratch - (int64_t)c->thread * (c->scratch_bytes / 4) + half;
    int32_t step = ceil_div(ceil_div(keys, ranges), 4) * 4;
    for (int32_t task; (task = claim(1)) < kv_heads * ranges;) {
        int32_t kv = task / ranges, from = task % ranges * step;
        float *record = ranges > 1 ? records + task * record_size : own;
        attend_range(a, kv, start, from, least(from + step, keys), record, q, scores);
        if (ranges == 1)
            for (int32_t s = 0; s < states; s++) write_few(a, kv, s, state_of(own, d, s).sums, *state_of(own, d, s).total);
    }
    if (ranges == 1) return DONE;
    int32_t status = meet(c);
    if (status) return status;
    Range mine = share(c, kv_heads * states, 1);
    const Exp2 e = exp2_from(0.0f);
    for (int32_t i = mine.from; i < mine.to; i++) {
        int32_t kv = i / states, s = i % states;
        float top = NOTHING, total = 0.0f;
        for (int32_t r = 0; r < ranges; r++) {
            float high = *state_of(records + (kv * ranges + r) * record_size, d, s).maximum;
            top = high > top ? high : top;
        }
        for (int32_t j = 0; j < d; j++) own[j] = 0.0f;
        for (int32_t r = 0; r < ranges; r++) {
            State part = state_of(records + (kv * ranges + r) * record_size, d, s);
            if (*part.total == 0.0f) continue;
            float factor = wasm_f32x4_extract_lane(exp2_below(&e, splat(*part.maximum - top)), 0);
            total += *part.total * factor;
            for (int32_t j = 0; j < d; j++) own[j] += part.sums[j] * factor;
        }
        write_few(a, kv, s, own, total);
    }
    return DONE;
}
