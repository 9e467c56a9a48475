// Indices of the COUNT largest of each row, largest first, of equals the lower index first. A workgroup a row.
// main, for COUNT up to 1024: finds the least of them digit by digit (radix select over 32 bits of the value, then of the index), takes
// all that are not less, and ranks them. rounds: COUNT times the largest of what comes after the one before.

override M: u32; override N: u32; override COUNT: u32;
override X: u32; override Y: u32;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

// A whole number that is larger where the float is: shaders may treat NaN and infinities as they like. NaN comes last.
fn key(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
    if (bits == 0x80000000u) { return 0x80000000u; } // -0 is 0
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> chosen: u32;
var<workgroup> above: u32;
var<workgroup> inside: u32;
var<workgroup> taken: atomic<u32>;
var<workgroup> best: array<vec2u, 1024>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + counts.x * (group.y + counts.y * group.z);
    if (row >= M) { return; }
    let from_ = X + row * N;
    var mask = vec2u(0);
    var least = vec2u(0);
    var need = COUNT;
    if (lane == 0) { atomicStore(&taken, 0u); } // some drivers leave in there what the workgroup before left
    for (var pass_ = 0u; pass_ < 8; pass_++) {
        let shift = 24 - pass_ % 4 * 8;
        atomicStore(&bins[lane], 0u);
        workgroupBarrier();
        for (var i = lane; i < N; i += 256) {
            let v = vec2u(key(x[from_ + i]), ~i);
            if (all((v & mask) == least)) { atomicAdd(&bins[(select(v.y, v.x, pass_ < 4) >> shift) & 255], 1u); }
        }
        workgroupBarrier();
        var over = 0u;
        for (var j = lane + 1; j < 256; j++) { over += atomicLoad(&bins[j]); }
        let here = atomicLoad(&bins[lane]);
        if (over < need && need <= over + here) {
            chosen = lane;
            above = over;
            inside = here;
        }
        let bin = workgroupUniformLoad(&chosen) << shift;
        need -= workgroupUniformLoad(&above);
        if (pass_ < 4) {
            mask.x |= 255u << shift;
            least.x |= bin;
        } else {
            mask.y |= 255u << shift;
            least.y |= bin;
        }
        if (workgroupUniformLoad(&inside) == need) { break; }
    }
    for (var i = lane; i < N; i += 256) {
        let v = vec2u(key(x[from_ + i]), ~i);
        let digits = v & mask;
        if (digits.x > least.x || (digits.x == least.x && digits.y >= least.y)) { best[min(atomicAdd(&taken, 1u), 1023u)] = v; }
    }
    workgroupBarrier();
    for (var i = lane; i < COUNT; i += 256) {
        let mine = best[i];
        var rank = 0u;
        for (var j = 0u; j < COUNT; j++) {
            let other = best[j];
            rank += u32(other.x > mine.x || (other.x == mine.x && other.y > mine.y));
        }
        y[Y + row * COUNT + rank] = ~mine.y;
    }
}

var<workgroup> values: array<u32, 256>;
var<workgroup> places: array<u32, 256>;

@compute @workgroup_size(256)
fn rounds(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + counts.x * (group.y + counts.y * group.z);
    let here = min(row, M - 1);
    // this thread's best candidate; it looks again through its share only when that one was taken
    var value = 0u;
    var place = N;
    for (var i = lane; i < N; i += 256) {
        let v = key(x[X + here * N + i]);
        if (place == N || v > value) {
            value = v;
            place = i;
        }
    }
    for (var round = 0u; round < COUNT; round++) {
        values[lane] = value;
        places[lane] = place;
        workgroupBarrier();
        for (var half = 128u; half > 0; half /= 2) {
            if (lane < half) {
                let other = values[lane + half];
                let its = places[lane + half];
                let mine = places[lane];
                if (its < N && (mine == N || other > values[lane] || (other == values[lane] && its < mine))) {
                    values[lane] = other;
                    places[lane] = its;
                }
            }
            workgroupBarrier();
        }
        let best = values[0];
        let taken = places[0];
        if (lane == 0 && row < M) { y[Y + row * COUNT + round] = taken; }
        workgroupBarrier();
        if (taken == place && place < N) {
            var next = 0u;
            place = N;
            for (var i = lane; i < N; i += 256) {
                let v = key(x[X + here * N + i]);
                if ((v < best || (v == best && i > taken)) && (place == N || v > next)) {
                    next = v;
                    place = i;
                }
            }
            value = next;
        }
    }
}
