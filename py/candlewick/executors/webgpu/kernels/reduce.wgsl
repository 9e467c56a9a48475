// Numbers of each row: sum, mean, max, argmax (the first of equals; an int32, or a float of it), log_sum_exp. A workgroup a row.
// Each is written if it has a place (not -1), the one of row i at its place + i steps.

override M: u32; override N: u32;
override X: u32; override LDX: u32;
override SUM: i32 = -1; override SUM_STEP: u32 = 0;
override MEAN: i32 = -1; override MEAN_STEP: u32 = 0;
override MAX: i32 = -1; override MAX_STEP: u32 = 0;
override ARGMAX: i32 = -1; override ARGMAX_STEP: u32 = 0; override AS_FLOAT: bool = false;
override LOG_SUM_EXP: i32 = -1; override LOG_SUM_EXP_STEP: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

const THREADS = 256u;
var<workgroup> parts: array<f32, THREADS>;
var<workgroup> places: array<u32, THREADS>;

fn total(lane: u32, mine: f32) -> f32 {
    parts[lane] = mine;
    workgroupBarrier();
    for (var half = THREADS / 2; half > 0; half /= 2) {
        if (lane < half) { parts[lane] += parts[lane + half]; }
        workgroupBarrier();
    }
    let sum = parts[0];
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + counts.x * (group.y + counts.y * group.z);
    if (row >= M) { return; }
    let from_ = X + row * LDX;
    if (SUM >= 0 || MEAN >= 0) {
        var mine = 0.0;
        for (var i = lane; i < N; i += THREADS) { mine += x[from_ + i]; }
        let sum = total(lane, mine);
        if (lane == 0 && SUM >= 0) { y[u32(SUM) + row * SUM_STEP] = bitcast<u32>(sum); }
        if (lane == 0 && MEAN >= 0) { y[u32(MEAN) + row * MEAN_STEP] = bitcast<u32>(sum / f32(N)); }
    }
    if (MAX >= 0 || ARGMAX >= 0 || LOG_SUM_EXP >= 0) {
        var value = -3.4e38;
        var place = N;
        for (var i = lane; i < N; i += THREADS) {
            let v = x[from_ + i];
            if (v > value || place == N) {
                value = v;
                place = i;
            }
        }
        parts[lane] = value;
        places[lane] = place;
        workgroupBarrier();
        for (var half = THREADS / 2; half > 0; half /= 2) {
            if (lane < half) {
                let other = parts[lane + half];
                let its = places[lane + half];
                if (its < N && (other > parts[lane] || (other == parts[lane] && its < places[lane]) || places[lane] == N)) {
                    parts[lane] = other;
                    places[lane] = its;
                }
            }
            workgroupBarrier();
        }
        let best = parts[0];
        let first = places[0];
        workgroupBarrier();
        if (lane == 0 && MAX >= 0) { y[u32(MAX) + row * MAX_STEP] = bitcast<u32>(best); }
        if (lane == 0 && ARGMAX >= 0) { y[u32(ARGMAX) + row * ARGMAX_STEP] = select(first, bitcast<u32>(f32(first)), AS_FLOAT); }
        if (LOG_SUM_EXP >= 0) {
            var mine = 0.0;
            for (var i = lane; i < N; i += THREADS) { mine += exp(x[from_ + i] - best); }
            let sum = total(lane, mine);
            if (lane == 0) { y[u32(LOG_SUM_EXP) + row * LOG_SUM_EXP_STEP] = bitcast<u32>(log(sum) + best); }
        }
    }
}
