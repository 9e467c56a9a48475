/* y[k]: where the k largest of x[n] are, largest first; of equals (0 and -0 too) the lower index first, NaN below everything.
 *
 * Each thread looks through its own part of the row. The k-th largest of the maxima of 8 k blocks is a bound below which
 * nothing counts; what reaches it (in random data little more than k) becomes a candidate: a 64-bit number that orders by
 * value, then by index, so that all are different. After the meeting each thread counts, for each of its candidates, the
 * larger ones of all threads: that is its place in y.
 */
#include "runtime.h"

enum { BLOCKS_PER_K = 8, WHOLE = 1024 /* parts up to here are candidates as they are */ };

/* Floats as integers of the same order. */
INLINE int32_t key_of(float value) {
    union { float f; int32_t i; } u = {value + 0.0f}; /* -0 becomes 0 */
    return value != value ? INT32_MIN : u.i ^ (int32_t)((uint32_t)(u.i >> 31) >> 1);
}
INLINE int64_t candidate(float value, int32_t index) {
    return (int64_t)((uint64_t)(uint32_t)key_of(value) << 32 | (uint32_t)(INT32_MAX - index));
}
INLINE int32_t index_of(int64_t candidate) { return INT32_MAX - (int32_t)candidate; }

/* How many of x[count] are at least (or = 0: above) `limit`; x is padded with the least number to a multiple of 2. */
static int32_t count_from(const int64_t *x, int32_t count, int64_t limit, int64_t or_equal) {
    vec l0 = wasm_i64x2_splat(limit - or_equal), total = zero();
    for (int32_t i = 0; i < count; i += 2) total = wasm_i64x2_sub(total, wasm_i64x2_gt(wasm_v128_load(x + i), l0));
    return (int32_t)(wasm_i64x2_extract_lane(total, 0) + wasm_i64x2_extract_lane(total, 1));
}
static int32_t count_keys(const int32_t *x, int32_t count, int32_t limit) { /* at least `limit`; count a multiple of 4 */
    vec l = wasm_i32x4_splat(limit), total = zero();
    for (int32_t i = 0; i < count; i += 4) total = wasm_i32x4_sub(total, wasm_i32x4_ge(wasm_v128_load(x + i), l));
    return wasm_i32x4_extract_lane(total, 0) + wasm_i32x4_extract_lane(total, 1) + wasm_i32x4_extract_lane(total, 2) +
           wasm_i32x4_extract_lane(total, 3);
}

/* The k-th largest, k <= count, bit by bit from the top. */
static int32_t nth_key(const int32_t *x, int32_t count, int32_t k) {
    uint32_t found = 0; /* as an unsigned number, which is the signed one with its first bit turned */
    for (uint32_t bit = 1u << 31; bit; bit >>= 1)
        if (count_keys(x, count, (int32_t)((found | bit) ^ 1u << 31)) >= k) found |= bit;
    return (int32_t)(found ^ 1u << 31);
}
static int64_t nth_candidate(const int64_t *x, int32_t count, int32_t k) {
    uint64_t found = 0;
    for (uint64_t bit = 1ull << 63; bit; bit >>= 1)
        if (count_from(x, count, (int64_t)((found | bit) ^ 1ull << 63), 1) >= k) found |= bit;
    return (int64_t)(found ^ 1ull << 63);
}

/* What a thread has found, at the beginning of its scratch. */
typedef struct { int32_t count, unused[3]; int64_t of[]; } Found;

/* Elements [from, to) of x that may be among the k largest, in order of their index. */
static void find(const float *x, Range part, int32_t k, Found *found, int32_t *keys) {
    int32_t n = part.to - part.from, count = 0;
    int32_t size = ceil_div(ceil_div(n, BLOCKS_PER_K * k), 16) * 16, blocks = n <= WHOLE ? 0 : n / size;
    if (blocks < k) {
        for (int32_t i = part.from; i < part.to; i++) found->of[count++] = candidate(x[i], i);
        found->count = count;
        return;
    }
    for (int32_t b = 0; b < blocks; b++) {
        const float *p = x + part.from + b * size;
        vec high[4];
        FULLY for (int j = 0; j < 4; j++) high[j] = splat(-__builtin_inff());
        for (int32_t i = 0; i < size; i += 16)
            FULLY for (int j = 0; j < 4; j++) high[j] = vmax(high[j], load(p + i + 4 * j)); /* a NaN is passed over */
        keys[b] = key_of(lane_max(vmax(vmax(high[0], high[1]), vmax(high[2], high[3]))));
    }
    int32_t padded = ceil_div(blocks, 4) * 4;
    for (int32_t b = blocks; b < padded; b++) keys[b] = INT32_MIN;
    int32_t bound = nth_key(keys, padded, k), equals = 0;
    union { int32_t i; float f; } u = {bound ^ (int32_t)((uint32_t)(bound >> 31) >> 1)};
    vec limit = splat(u.f);
    for (int32_t b = 0; b <= blocks; b++) {
        if (b < blocks && keys[b] < bound) continue;
        int32_t i = part.from + b * size, end = b < blocks ? i + size : part.to; /* behind the blocks there may be a rest */
        for (; i < end; i += 4) {
            vec v = i + 4 <= end ? load(x + i) : wasm_f32x4_make(x[i], i + 1 < end ? x[i + 1] : __builtin_nanf(""),
                                                                  i + 2 < end ? x[i + 2] : __builtin_nanf(""), __builtin_nanf(""));
            for (uint32_t mask = wasm_i32x4_bitmask(wasm_f32x4_ge(v, limit)); mask; mask &= mask - 1) {
                int32_t at = i + __builtin_ctz(mask);
                /* of those that equal the bound the first k are enough */
                if (x[at] > u.f || equals++ < k) found->of[count++] = candidate(x[at], at);
            }
        }
    }
    for (int32_t i = part.from; i < part.to && count < k; i++) /* fewer than k numbers: NaN after them */
        if (x[i] != x[i]) found->of[count++] = candidate(x[i], i);
    found->count = count;
}

/* Only the k largest, and padding. */
static void prune(Found *found, int32_t k) {
    int32_t count = found->count, kept = 0;
    found->of[count] = INT64_MIN;
    if (count > k) {
        int64_t limit = nth_candidate(found->of, count, k);
        for (int32_t i = 0; i < count; i++)
            if (found->of[i] >= limit) found->of[kept++] = found->of[i];
        found->count = kept;
        found->of[kept] = INT64_MIN;
    }
}

int32_t kernel_top_k(const top_k_args *a, const Context *c) {
    int32_t k = a->k, n = a->n, words = c->scratch_bytes / 4;
    Found *mine = (Found *)c->scratch;
    for (int32_t r = 0; r < a->m; r++) {
        int32_t *keys = (int32_t *)c->scratch + words - (BLOCKS_PER_K * k + 4);
        find(AT(float, a->x) + (int64_t)r * n, share(c, n, 64), k, mine, keys);
        prune(mine, k);
        int32_t status = meet(c);
        if (status) return status;
        for (int32_t i = 0; i < mine->count; i++) {
            int32_t place = 0;
            for (int32_t t = 0; t < c->n_threads; t++) {
                const Found *theirs = (const Found *)(c->scratch + (int64_t)(t - c->thread) * words);
                place += count_from(theirs->of, theirs->count, mine->of[i], 0);
            }
            if (place < k) AT(int32_t, a->y)[(int64_t)r * k + place] = index_of(mine->of[i]);
        }
        if (r + 1 < a->m && (status = meet(c))) return status; /* nobody overwrites what others still read */
    }
    return DONE;
}
