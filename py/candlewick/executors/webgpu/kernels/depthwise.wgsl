// A square kernel of TAPS x TAPS over each channel by itself, pictures (batch, height, width, channels); a thread an output element.

override M: u32; override HEIGHT: u32; override WIDTH: u32; override C: u32;
override H_OUT: u32; override W_OUT: u32;
override TAPS: u32; override STRIDE: u32; override PADDING: u32;
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

fn erf(v: f32) -> f32 {
    let a = abs(v);
    if (a < 0.5) {
        let z = v * v;
        let p = -0.3761263890 + z * (0.1128379167 + z * (-0.0268661706 + z * (0.0052239776 - z * 0.00085483270)));
        return v * (1.1283791671 + z * p);
    }
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(v) * (1.0 - p * exp(-min(a * a, 80.0)));
}

fn act(kind: u32, v: f32) -> f32 {
    switch (kind) {
        case 1u: { return 0.5 * v * (1.0 + erf(v * 0.70710678)); }
        case 2u: { return max(v, 0.0); }
        case 3u: { return v / (1.0 + exp(min(-v, 88.0))); }
        default: { return v; }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let at = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;
    if (at >= M * C) { return; }
    let c = at % C;
    let row = at / C;
    let i0 = i32(row / W_OUT % H_OUT * STRIDE) - i32(PADDING);
    let j0 = i32(row % W_OUT * STRIDE) - i32(PADDING);
    let picture = row / (W_OUT * H_OUT) * HEIGHT;
    var v = 0.0;
    for (var a = 0; a < i32(TAPS); a++) {
        for (var b = 0; b < i32(TAPS); b++) {
            let i = i0 + a;
            let j = j0 + b;
            if (i >= 0 && j >= 0 && i < i32(HEIGHT) && j < i32(WIDTH)) {
                v += x[X + ((picture + u32(i)) * WIDTH + u32(j)) * C + c] * weight((c * TAPS + u32(a)) * TAPS + u32(b));
            }
        }
    }
    if (HAS_BIAS) { v += bias[BIAS + c]; }
    v = act(ACTIVATION, v);
    if (HAS_RESIDUAL) { v += residual[RESIDUAL + at]; }
    y[Y + at] = act(FINAL, v);
}
