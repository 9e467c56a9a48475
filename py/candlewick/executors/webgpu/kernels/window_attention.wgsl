// Attention within squares of WINDOW x WINDOW positions: qkv (batch, height, width, head, 3, d) -> (batch, height, width, head, d).
// A workgroup has one window and head, a thread every 64th query of it. Positions beyond the picture have the values `outside`.
// D is at most 64.

override HEIGHT: u32; override WIDTH: u32; override WINDOW: u32; override HEADS: u32; override D: u32;
override BATCH: u32; override ROWS: u32; override COLUMNS: u32;
override QKV: u32; override OUTSIDE: u32 = 0; override BIAS: u32 = 0; override HAS_BIAS: bool = false; override Y: u32;
override SCALE: f32;

@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read> outside: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let place = id / HEADS;
    if (place >= BATCH * ROWS * COLUMNS) { return; }
    let head = id % HEADS;
    let row0 = place / COLUMNS % ROWS * WINDOW;
    let column0 = place % COLUMNS * WINDOW;
    let picture = place / (COLUMNS * ROWS) * HEIGHT;
    let n = WINDOW * WINDOW;
    let wide = 3 * HEADS * D;
    for (var i = lane; i < n; i += 64) {
        let row = row0 + i / WINDOW;
        let column = column0 + i % WINDOW;
        if (row >= HEIGHT || column >= WIDTH) { continue; }
        let q = QKV + ((picture + row) * WIDTH + column) * wide + head * 3 * D;
        var largest = -3.0e38;
        var total = 0.0;
        var sums: array<f32, 64>;
        for (var j = 0u; j < n; j++) {
            let r = row0 + j / WINDOW;
            let c = column0 + j % WINDOW;
            let inside = r < HEIGHT && c < WIDTH;
            let key = QKV + ((picture + min(r, HEIGHT - 1)) * WIDTH + min(c, WIDTH - 1)) * wide + head * 3 * D + D;
            let other = OUTSIDE + head * 3 * D + D;
            var score = 0.0;
            for (var a = 0u; a < D; a++) {
                var value = 0.0;
                if (inside) { value = qkv[key + a]; } else { value = outside[other + a]; }
                score += qkv[q + a] * value;
            }
            score *= SCALE;
            if (HAS_BIAS) { score += bias[BIAS + (head * n + i) * n + j]; }
            let top = max(largest, score);
            let fade = exp(largest - top);
            let p = exp(score - top);
            largest = top;
            total = total * fade + p;
            for (var a = 0u; a < D; a++) {
                var value = 0.0;
                if (inside) { value = qkv[key + D + a]; } else { value = outside[other + D + a]; }
                sums[a] = sums[a] * fade + p * value;
            }
        }
        let to = Y + ((picture + row) * WIDTH + column) * HEADS * D + head * D;
        for (var a = 0u; a < D; a++) { y[to + a] = sums[a] / total; }
    }
}
