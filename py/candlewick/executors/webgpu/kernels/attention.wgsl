// y = softmax(scale q k^T + bias) v without an (n, m) buffer: online softmax over tiles of keys (Dao et al. 2022).
// GROUP query heads share a key head: its rows are the queries of all of them, row = query * GROUP + head in the group.
// A workgroup answers 16 rows, 16 keys at a time; thread (j, i) has row i: one score, then the values j, j + 16, ...
// causal: query i sees keys <= start + i. D is at most 128. For at most 8 rows there is attention_few.wgsl.

override BATCH: u32; override HEADS: u32; override GROUP: u32; override NQ: u32; override NK: u32; override D: u32;
override Q: u32; override Q_BATCH: u32; override Q_HEAD: u32; override Q_ROW: u32;
override K: u32; override K_BATCH: u32; override K_HEAD: u32; override K_ROW: u32;
override V: u32; override V_BATCH: u32; override V_HEAD: u32; override V_ROW: u32;
override Y: u32; override Y_BATCH: u32; override Y_HEAD: u32; override Y_ROW: u32;
override BIAS: u32 = 0; override BIAS_BATCH: u32 = 0; override BIAS_HEAD: u32 = 0; override BIAS_ROW: u32 = 0;
override HAS_BIAS: bool = false;
override CAUSAL: bool = false;
override SCALE: f32;
override SLOT: i32 = -1; override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;

var<workgroup> keys: array<f32, 2064>; // 16 rows of 128 + 1
var<workgroup> scores: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
        @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let rows = NQ * GROUP;
    let tiles = (rows + 15) / 16;
    let kv = id / tiles % (HEADS / GROUP);
    let batch = id / (tiles * (HEADS / GROUP));
    if (batch >= BATCH) { return; }
    let first_row = id % tiles * 16;
    let here = min(first_row + at.y, rows - 1);
    let query = here / GROUP;
    let head = kv * GROUP + here % GROUP;
    var start = FIXED;
    if (SLOT >= 0) { start = scalars[u32(max(SLOT, 0))]; }
    let q_at = Q + batch * Q_BATCH + head * Q_HEAD + query * Q_ROW;
    let k_at = K + batch * K_BATCH + kv * K_HEAD;
    let v_at = V + batch * V_BATCH + kv * V_HEAD;
    let bias_at = BIAS + batch * BIAS_BATCH + head * BIAS_HEAD + query * BIAS_ROW;
    var end = NK;
    if (CAUSAL) { end = min(NK, start + min(first_row + 15, rows - 1) / GROUP + 1); }
    var largest = -3.0e38;
    var total = 0.0;
    var sums: array<f32, 8>;
    for (var first = 0u; first < end; first += 16) {
        for (var j = lane; j < 16 * D; j += 256) {
            let key = min(first + j / D, NK - 1);
            keys[j / D * 129 + j % D] = k[k_at + key * K_ROW + j % D];
        }
        workgroupBarrier();
        let key = first + at.x;
        var score = -3.0e38;
        if (key < end && (!CAUSAL || key <= start + query)) {
            var dot = 0.0;
            for (var c = 0u; c < D; c++) { dot += q[q_at + c] * keys[at.x * 129 + c]; }
            score = dot * SCALE;
            if (HAS_BIAS) { score += bias[bias_at + key]; }
        }
        scores[lane] = score;
        workgroupBarrier();
        var top = largest;
        for (var j = 0u; j < 16; j++) { top = max(top, scores[at.y * 16 + j]); }
        let fade = exp(largest - top);
        largest = top;
        total *= fade;
        for (var c = 0u; c < 8; c++) { sums[c] *= fade; }
        for (var j = 0u; j < min(16u, end - first); j++) {
            let s = scores[at.y * 16 + j];
            if (s > -2.9e38) {
                let p = exp(s - top);
                total += p;
                for (var c = 0u; c * 16 + at.x < D; c++) { sums[c] += p * v[v_at + (first + j) * V_ROW + c * 16 + at.x]; }
            }
        }
        workgroupBarrier();
    }
    if (first_row + at.y < rows) {
        for (var c = 0u; c * 16 + at.x < D; c++) {
            y[Y + batch * Y_BATCH + head * Y_HEAD + query * Y_ROW + c * 16 + at.x] = sums[c] / total;
        }
    }
}
