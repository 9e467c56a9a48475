// Pictures (batch, height, width, channels): y = final(activation(conv + bias) + residual) as a product of gathered rows: row i is an
// output position, k runs over (kh, kw, c_in). A workgroup makes 64 positions x 64 channels, a thread 4 x 4 of it.

override M: u32; override HEIGHT: u32; override WIDTH: u32; override C_IN: u32;
override H_OUT: u32; override W_OUT: u32; override N: u32;
override KH: u32; override KW: u32; override STRIDE: u32; override PADDING: u32;
override X: u32; override Y: u32;
override BIAS: u32 = 0; override HAS_BIAS: bool = false;
override RESIDUAL: u32 = 0; override HAS_RESIDUAL: bool = false;
override ACTIVATION: u32 = 0; override FINAL: u32 = 0;
// 0 float32, 1 float16 and 2 bfloat16 (two in a word)
override DTYPE: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn weight(i: u32) -> f32 {
    if (DTYPE == 0) { return bitcast<f32>(w[i]); }
    let word = w[i / 2];
    if (DTYPE == 1) { return unpack2x16float(word)[i % 2]; }
    return bitcast<f32>(select(word << 16, word & 0xffff0000u, i % 2 == 1));
}

// Four at a time, so that an epilogue is written out a few times only.
fn erf4(v: vec4f) -> vec4f {
    let a = abs(v);
    let z = v * v;
    let near = -0.3761263890 + z * (0.1128379167 + z * (-0.0268661706 + z * (0.0052239776 - z * 0.00085483270)));
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let far = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return select(sign(v) * (1.0 - far * exp(-min(z, vec4f(80.0)))), v * (1.1283791671 + z * near), a < vec4f(0.5));
}

fn act4(kind: u32, v: vec4f) -> vec4f {
    switch (kind) {
        case 1u: { return 0.5 * v * (1.0 + erf4(v * 0.70710678)); }
        case 2u: { return max(v, vec4f(0.0)); }
        case 3u: { return v / (1.0 + exp(min(-v, vec4f(88.0)))); }
        default: { return v; }
    }
}

fn pixel(row: u32, k: u32) -> f32 {
    let c = k % C_IN;
    let i = i32(row / W_OUT % H_OUT * STRIDE + k / (C_IN * KW)) - i32(PADDING);
    let j = i32(row % W_OUT * STRIDE + k / C_IN % KW) - i32(PADDING);
    if (i < 0 || j < 0 || i >= i32(HEIGHT) || j >= i32(WIDTH)) { return 0.0; }
    return x[X + ((row / (W_OUT * H_OUT) * HEIGHT + u32(i)) * WIDTH + u32(j)) * C_IN + c];
}

var<workgroup> xs: array<f32, 1088>;
var<workgroup> ws: array<f32, 1088>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
        @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let across = (N + 63) / 64;
    let row0 = id / across * 64;
    let column0 = id % across * 64;
    if (row0 >= M) { return; }
    let deep = KH * KW * C_IN;
    var sums: array<vec4f, 4>;
    for (var k0 = 0u; k0 < deep; k0 += 16) {
        for (var j = lane; j < 1024; j += 256) {
            let k = k0 + j % 16;
            let line = j / 16;
            var a = 0.0;
            var b = 0.0;
            if (k < deep && row0 + line < M) { a = pixel(row0 + line, k); }
            if (k < deep && column0 + line < N) { b = weight((column0 + line) * deep + k); }
            xs[j % 16 * 68 + line] = a;
            ws[j % 16 * 68 + line] = b;
        }
        workgroupBarrier();
        for (var k = 0u; k < 16; k++) {
            let b = vec4f(ws[k * 68 + at.x], ws[k * 68 + at.x + 16], ws[k * 68 + at.x + 32], ws[k * 68 + at.x + 48]);
            for (var r = 0u; r < 4; r++) { sums[r] += xs[k * 68 + at.y * 4 + r] * b; }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4; r++) {
        let row = row0 + at.y * 4 + r;
        if (row >= M) { continue; }
        let first = column0 + at.x;
        var v = sums[r];
        for (var c = 0u; c < 4 && HAS_BIAS; c++) { v[c] += bias[BIAS + min(first + c * 16, N - 1)]; }
        v = act4(ACTIVATION, v);
        for (var c = 0u; c < 4 && HAS_RESIDUAL; c++) { v[c] += residual[RESIDUAL + row * N + min(first + c * 16, N - 1)]; }
        v = act4(FINAL, v);
        for (var c = 0u; c < 4; c++) {
            if (first + c * 16 < N) { y[Y + row * N + first + c * 16] = v[c]; }
        }
    }
}
