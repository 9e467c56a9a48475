// Attention within squares of WINDOW x WINDOW positions: qkv (batch, height, width, head, 3, d) -> (batch, height, width, head, d).
// Positions beyond the picture have the values `outside`. D is at most 64.
//
// A workgroup has one window and head, a thread one query of it, in registers. Keys and values pass through workgroup memory, CHUNK
// of them at a time: memory gives each once to a window and not once to each of its queries (49 or 196), and all threads read the
// same one at the same time. Softmax goes on from four keys to the next four, so that what was summed is scaled once for them.
// Numbers of a head are padded to sixteens: 14 KiB hold 56 keys and values of 32 numbers, or 28 of 64.

override HEIGHT: u32; override WIDTH: u32; override WINDOW: u32; override HEADS: u32; override D: u32;
override BATCH: u32; override ROWS: u32; override COLUMNS: u32;
override QKV: u32; override OUTSIDE: u32 = 0; override BIAS: u32 = 0; override HAS_BIAS: bool = false; override Y: u32;
override SCALE: f32;
override THREADS: u32 = 64;
override CHUNK: u32 = 28;

@group(0) @binding(0) var<storage, read> qkv: array<vec4f>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read> outside: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> keys: array<vec4f, 448>;
var<workgroup> values: array<vec4f, 448>;

/// Four numbers of a head, from number a of those that begin at `at`; zeros beyond D.
fn four(at: u32, a: u32) -> vec4f {
    if ((QKV | D) % 4 == 0) { return select(vec4f(0.0), qkv[(at + a) / 4], a < D); }
    var v = vec4f(0.0);
    for (var c = 0u; c < 4 && a + c < D; c++) { v[c] = qkv[(at + a + c) / 4][(at + a + c) % 4]; }
    return v;
}

fn four_outside(at: u32, a: u32) -> vec4f {
    var v = vec4f(0.0);
    for (var c = 0u; c < 4 && a + c < D; c++) { v[c] = outside[OUTSIDE + at + a + c]; }
    return v;
}

fn sixteen(at: u32, a: u32) -> mat4x4f { return mat4x4f(four(at, a), four(at, a + 4), four(at, a + 8), four(at, a + 12)); }

fn product(q: mat4x4f, k: u32) -> f32 {
    return dot(q[0], keys[k]) + dot(q[1], keys[k + 1]) + dot(q[2], keys[k + 2]) + dot(q[3], keys[k + 3]);
}

fn part(p: f32, v: u32) -> mat4x4f { return mat4x4f(p * values[v], p * values[v + 1], p * values[v + 2], p * values[v + 3]); }

/// What four keys leave of their values, which lie `wide` apart.
fn parts(p: vec4f, v: u32, wide: u32) -> mat4x4f {
    return part(p.x, v) + part(p.y, v + wide) + part(p.z, v + 2 * wide) + part(p.w, v + 3 * wide);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let place = id / HEADS;
    if (place >= BATCH * ROWS * COLUMNS) { return; }
    let head = id % HEADS;
    let row0 = place / COLUMNS % ROWS * WINDOW;
    let column0 = place % COLUMNS * WINDOW;
    let picture = place / (COLUMNS * ROWS) * HEIGHT;
    let n = WINDOW * WINDOW;
    let wide = (D + 15) / 16 * 4; // vec4f of a key
    for (var first = 0u; first < n; first += THREADS) {
        let i = min(first + lane, n - 1);
        let row = row0 + i / WINDOW;
        let column = column0 + i % WINDOW;
        let pixel = (picture + min(row, HEIGHT - 1)) * WIDTH + min(column, WIDTH - 1);
        let q = QKV + (pixel * HEADS + head) * 3 * D;
        var q1 = mat4x4f();
        var q2 = mat4x4f();
        var q3 = mat4x4f();
        let q0 = sixteen(q, 0u);
        if (D > 16) { q1 = sixteen(q, 16u); }
        if (D > 32) { q2 = sixteen(q, 32u); }
        if (D > 48) { q3 = sixteen(q, 48u); }
        var s0 = mat4x4f();
        var s1 = mat4x4f();
        var s2 = mat4x4f();
        var s3 = mat4x4f();
        var largest = -3.0e38;
        var total = 0.0;
        for (var start = 0u; start < n; start += CHUNK) {
            workgroupBarrier();
            for (var j = lane; j < CHUNK * wide; j += THREADS) {
                let key = start + j / wide;
                let a = j % wide * 4;
                let r = row0 + key / WINDOW;
                let c = column0 + key % WINDOW;
                let at = QKV + (((picture + r) * WIDTH + c) * HEADS + head) * 3 * D;
                var k = vec4f(0.0);
                var v = vec4f(0.0);
                if (key < n && r < HEIGHT && c < WIDTH) {
                    k = four(at + D, a);
                    v = four(at + 2 * D, a);
                } else if (key < n) {
                    k = four_outside((head * 3 + 1) * D, a);
                    v = four_outside((head * 3 + 2) * D, a);
                }
                keys[j] = k;
                values[j] = v;
            }
            workgroupBarrier();
            for (var j = 0u; j < min(CHUNK, n - start); j += 4) {
                var scores: vec4f;
                for (var c = 0u; c < 4; c++) {
                    let k = (j + c) * wide;
                    var score = product(q0, k);
                    if (D > 16) { score += product(q1, k + 4); }
                    if (D > 32) { score += product(q2, k + 8); }
                    if (D > 48) { score += product(q3, k + 12); }
                    score *= SCALE;
                    let key = start + j + c;
                    if (HAS_BIAS) { score += bias[BIAS + (head * n + i) * n + min(key, n - 1)]; }
                    scores[c] = select(-3.0e38, score, key < n);
                }
                let top = max(largest, max(max(scores.x, scores.y), max(scores.z, scores.w)));
                let fade = exp(largest - top);
                let p = exp(scores - top);
                largest = top;
                total = total * fade + dot(p, vec4f(1.0));
                let v = j * wide;
                s0 = s0 * fade + parts(p, v, wide);
                if (D > 16) { s1 = s1 * fade + parts(p, v + 4, wide); }
                if (D > 32) { s2 = s2 * fade + parts(p, v + 8, wide); }
                if (D > 48) { s3 = s3 * fade + parts(p, v + 12, wide); }
            }
        }
        var sums = array(s0, s1, s2, s3);
        let mine = first + lane < n && row < HEIGHT && column < WIDTH;
        for (var a = 0u; a < select(0u, D, mine); a++) {
            y[Y + (pixel * HEADS + head) * D + a] = sums[a / 16][a / 4 % 4][a % 4] / total;
        }
    }
}
