// Each position becomes a square of STRIDE x STRIDE positions: w flat (c_in, c_out, stride, stride); a thread an output element.

override M: u32; override HEIGHT: u32; override WIDTH: u32; override C_IN: u32; override C_OUT: u32; override STRIDE: u32;
override X: u32; override W: u32; override Y: u32;
override BIAS: u32 = 0; override HAS_BIAS: bool = false;
override ACTIVATION: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

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
    if (at >= M) { return; }
    let c = at % C_OUT;
    let j = at / C_OUT % (WIDTH * STRIDE);
    let i = at / (C_OUT * WIDTH * STRIDE) % (HEIGHT * STRIDE);
    let batch = at / (C_OUT * WIDTH * STRIDE * HEIGHT * STRIDE);
    let source = X + ((batch * HEIGHT + i / STRIDE) * WIDTH + j / STRIDE) * C_IN;
    let tap = W + (c * STRIDE + i % STRIDE) * STRIDE + j % STRIDE;
    var v = 0.0;
    for (var k = 0u; k < C_IN; k++) { v += x[source + k] * w[tap + k * C_OUT * STRIDE * STRIDE]; }
    if (HAS_BIAS) { v += bias[BIAS + c]; }
    y[Y + at] = act(ACTIVATION, v);
}
