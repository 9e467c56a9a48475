// Rows of a table (n, k): y[i] = table[ids[i]]. Ids were checked before; one that is too large reads the last row.

override M: u32; override N: u32; override K: u32;
override IDS: u32; override Y: u32;
// 0 float32, 1 float16 and 2 bfloat16 (two in a word)
override DTYPE: u32 = 0;

@group(0) @binding(0) var<storage, read> ids: array<i32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let at = (group.x + group.y * counts.x) * 256 + lane;
    if (at >= M * K) { return; }
    let i = u32(clamp(ids[IDS + at / K], 0, i32(N - 1))) * K + at % K;
    if (DTYPE == 0) {
        y[Y + at] = bitcast<f32>(w[i]);
    } else if (DTYPE == 1) {
        y[Y + at] = unpack2x16float(w[i / 2])[i % 2];
    } else {
        let word = w[i / 2];
        y[Y + at] = bitcast<f32>(select(word << 16, word & 0xffff0000u, i % 2 == 1));
    }
}
