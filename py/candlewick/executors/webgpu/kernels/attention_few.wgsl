// attention.wgsl for at most 8 rows (queries of the heads that share a head of keys), as a step of decoding has: what takes time is
// reading keys and values, so each is read once, and the keys fall into SPLITS parts of KEYS, a workgroup each (Dao et al. 2023,
// flash-decoding). With one part it writes y; else each leaves its sums, largest score and total, and `combine` adds them up.
// Rows of q, k, v begin at multiples of four; D is a multiple of 4, at most 128.

override BATCH: u32; override HEADS: u32; override GROUP: u32; override NQ: u32; override NK: u32; override D: u32;
override Q: u32 = 0; override Q_BATCH: u32 = 0; override Q_HEAD: u32 = 0; override Q_ROW: u32 = 0;
override K: u32 = 0; override K_BATCH: u32 = 0; override K_HEAD: u32 = 0; override K_ROW: u32 = 0;
override V: u32 = 0; override V_BATCH: u32 = 0; override V_HEAD: u32 = 0; override V_ROW: u32 = 0;
override Y: u32 = 0; override Y_BATCH: u32 = 0; override Y_HEAD: u32 = 0; override Y_ROW: u32 = 0;
override BIAS: u32 = 0; override BIAS_BATCH: u32 = 0; override BIAS_HEAD: u32 = 0; override BIAS_ROW: u32 = 0;
override HAS_BIAS: bool = false;
override CAUSAL: bool = false;
override SCALE: f32 = 1;
override SLOT: i32 = -1; override FIXED: u32 = 0;
override SPLITS: u32; override KEYS: u32 = 128;

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;
@group(0) @binding(6) var<storage, read> left: array<f32>; // what the parts left: (batch, head, query, part, D + 2)

const CHUNK = 128u; // keys at a time
var<workgroup> scores: array<f32, 1024>; // 8 rows of CHUNK
var<workgroup> parts: array<f32, 2048>;
var<workgroup> fades: array<f32, 8>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let rows = NQ * GROUP;
    let part = id % SPLITS;
    let kv = id / SPLITS % (HEADS / GROUP);
    let batch = id / (SPLITS * (HEADS / GROUP));
    if (batch >= BATCH) { return; }
    var start = FIXED;
    if (SLOT >= 0) { start = scalars[u32(max(SLOT, 0))]; }
    var end = min(NK, part * KEYS + KEYS);
    if (CAUSAL) { end = min(end, start + NQ); }
    let q_at = Q + batch * Q_BATCH + kv * GROUP * Q_HEAD;
    let k_at = K + batch * K_BATCH + kv * K_HEAD;
    let v_at = V + batch * V_BATCH + kv * V_HEAD;

    // 32 threads look after the scores of a row, 16 x 16 after the values (16 of four numbers, every 16th key)
    let row = lane / 32;
    let column = lane % 16;
    var largest = -3.0e38;
    var total = 0.0;
    var sums = array<vec4f, 16>();
    for (var first = part * KEYS; first < end; first += CHUNK) {
        for (var turn = 0u; turn < CHUNK; turn += 64) {
            let key = min(first + turn + lane / 4, NK - 1);
            var dots = array<f32, 8>(); // said in words: some compilers forget that a variable in a loop begins at 0
            for (var c = lane % 4; c < D / 4; c += 4) {
                let its = k[(k_at + key * K_ROW) / 4 + c];
                for (var r = 0u; r < rows; r++) {
                    dots[r] += dot(its, q[(q_at + r % GROUP * Q_HEAD + r / GROUP * Q_ROW) / 4 + c]);
                }
            }
            for (var r = 0u; r < rows; r++) { parts[r * 256 + lane] = dots[r]; }
            workgroupBarrier();
            for (var j = lane; j < rows * 64; j += 256) {
                let r = j / 64;
                let place = first + turn + j % 64;
                let four = r * 256 + j % 64 * 4;
                var score = (parts[four] + parts[four + 1] + parts[four + 2] + parts[four + 3]) * SCALE;
                if (HAS_BIAS) {
                    score += bias[BIAS + batch * BIAS_BATCH + (kv * GROUP + r % GROUP) * BIAS_HEAD + r / GROUP * BIAS_ROW
                                  + min(place, NK - 1)];
                }
                if (place >= end || (CAUSAL && place > start + r / GROUP)) { score = -3.0e38; }
                scores[r * CHUNK + turn + j % 64] = score;
            }
            workgroupBarrier();
        }
        var top = -3.0e38;
        if (row < rows) {
            for (var j = lane % 32; j < CHUNK; j += 32) { top = max(top, scores[row * CHUNK + j]); }
        }
        parts[lane] = top;
        workgroupBarrier();
        if (row < rows) {
            top = largest;
            for (var j = 0u; j < 32; j++) { top = max(top, parts[row * 32 + j]); }
            let fade = exp(max(largest - top, -80.0));
            largest = top;
            total *= fade;
            if (lane % 32 == 0) { fades[row] = fade; }
            for (var j = lane % 32; j < CHUNK; j += 32) {
                let s = scores[row * CHUNK + j];
                var p = 0.0;
                if (s > -2.9e38) { p = exp(s - top); }
                scores[row * CHUNK + j] = p;
                total += p;
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < rows; r++) {
            sums[2 * r] *= fades[r];
            sums[2 * r + 1] *= fades[r];
        }
        for (var j = lane / 16; j < min(CHUNK, end - first); j += 16) {
            for (var c = 0u; c * 16 + column < D / 4; c++) {
                let its = v[(v_at + (first + j) * V_ROW) / 4 + c * 16 + column];
                for (var r = 0u; r < rows; r++) { sums[2 * r + c] += scores[r * CHUNK + j] * its; }
            }
        }
        workgroupBarrier();
    }

    parts[lane] = total;
    workgroupBarrier();
    total = 0.0;
    for (var j = 0u; j < 32; j++) { total += parts[row * 32 + j]; }
    workgroupBarrier();
    if (lane % 32 == 0) {
        fades[row] = total;
        scores[row] = largest;
    }
    for (var r = 0u; r < rows; r++) {
        for (var c = 0u; c * 16 + column < D / 4; c++) {
            let to = (lane / 16 * 32 + c * 16 + column) * 4;
            for (var e = 0u; e < 4; e++) { parts[to + e] = sums[2 * r + c][e]; }
        }
        workgroupBarrier();
        let head = kv * GROUP + r % GROUP;
        let query = r / GROUP;
        let mine = (((batch * HEADS + head) * NQ + query) * SPLITS + part) * (D + 2);
        if (lane < D) {
            var sum = 0.0;
            for (var j = 0u; j < 16; j++) { sum += parts[j * 128 + lane]; }
            if (SPLITS == 1) {
                y[Y + batch * Y_BATCH + head * Y_HEAD + query * Y_ROW + lane] = sum / fades[r];
            } else {
                y[mine + lane] = sum;
            }
        } else if (lane < D + 2 && SPLITS > 1) {
            y[mine + lane] = select(fades[r], scores[r], lane == D);
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size(64)
fn combine(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    if (id >= BATCH * HEADS * NQ) { return; }
    let wide = D + 2;
    var top = -3.0e38;
    for (var i = 0u; i < SPLITS; i++) { top = max(top, left[(id * SPLITS + i) * wide + D]); }
    let to = Y + id / (NQ * HEADS) * Y_BATCH + id / NQ % HEADS * Y_HEAD + id % NQ * Y_ROW;
    for (var c = lane; c < D; c += 64) {
        var sum = 0.0;
        var total = 0.0;
        for (var i = 0u; i < SPLITS; i++) {
            let at = (id * SPLITS + i) * wide;
            let share = exp(max(left[at + D] - top, -80.0));
            if (left[at + D + 1] > 0.0) {
                sum += share * left[at + c];
                total += share * left[at + D + 1];
            }
        }
        y[to + c] = sum / total;
    }
}
