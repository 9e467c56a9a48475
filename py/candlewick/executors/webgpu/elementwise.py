"""Elementwise ops -> a WGSL kernel each, or one for a chain. The only generated WGSL; all else is a file in kernels/."""

from __future__ import annotations

from collections.abc import Sequence

ERF = """
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
"""
# {0}, {1}: operands. Arguments of exp and tanh are clamped: some drivers make NaN of what overflows.
FORMULAS = {
    "gelu": "0.5 * {0} * (1.0 + erf({0} * 0.70710678))",
    "relu": "max({0}, 0.0)",
    "silu": "{0} / (1.0 + exp(min(-{0}, 88.0)))",
    "sigmoid": "1.0 / (1.0 + exp(min(-{0}, 88.0)))",
    "exp": "exp({0})",
    "log": "log({0})",
    "log10": "log({0}) * 0.4342944819",
    "sqrt": "sqrt({0})",
    "square": "{0} * {0}",
    "neg": "-{0}",
    "tanh": "tanh(clamp({0}, -15.0, 15.0))",
    "sin": "turned({0}, 0)",
    "cos": "turned({0}, 1)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
    "swiglu": "{0} / (1.0 + exp(min(-{0}, 88.0))) * {1}",
}
# Drivers may compute sin to 2^-11 only, and only near 0: reduce to +-pi/4 in three parts (Cody, Waite 1980), then polynomials.
TURNED = """
fn turned(v: f32, quarter: i32) -> f32 {
    let n = round(v * 0.63661977237);
    let r = ((v - n * 1.5703125) - n * 4.8375129699707e-4) - n * 7.549790126404332e-8;
    let z = r * r;
    let s = r + r * z * (-0.16666654611 + z * (0.0083321608736 - z * 0.00019515295891));
    let c = 1.0 - 0.5 * z + z * z * (0.041666645683 + z * (-0.0013887316255 + z * 0.000024433157118));
    let turn = (i32(n) + quarter) & 3;
    let w = select(s, c, (turn & 1) == 1);
    return select(w, -w, turn >= 2);
}
"""

Step = tuple[str, tuple[int, ...]]
"""(op, operands): an operand from 0 is an input of the kernel, -1 - i is the result of step i."""


def kernel(steps: Sequence[Step], n_inputs: int, n_axes: int = 4, moving: Sequence[bool] = ()) -> str:
    """WGSL for y = the last step, over axes D0, D1, ...; input j has its place O<j> and strides S<j>_0, ... (0 repeats), y has
    Y and Y_0, ... A moving input lies P<j>_STEP words further for each of the runtime scalar P<j>."""
    axes = range(n_axes)
    moves = [any(moving[j : j + 1]) for j in range(n_inputs)]
    lines = [f"// {' '.join(op for op, _ in steps)}", "", "override N: u32; override Y: u32;"]
    lines += [" ".join(f"override D{a}: u32; override Y_{a}: u32;" for a in axes)]
    for j in range(n_inputs):
        lines.append(f"override O{j}: u32; " + " ".join(f"override S{j}_{a}: u32;" for a in axes))
        if moves[j]:
            lines.append(f"override P{j}: u32; override P{j}_STEP: u32;")
    lines += [f"@group(0) @binding({j}) var<storage, read> x{j}: array<f32>;" for j in range(n_inputs)]
    lines += [f"@group(0) @binding({n_inputs}) var<storage, read_write> y: array<f32>;"]
    if any(moves):
        lines.append(f"@group(0) @binding({n_inputs + 1}) var<storage, read> scalars: array<u32>;")
    text = "\n".join(FORMULAS[op] for op, _ in steps)
    lines += [ERF] if "erf(" in text else []
    lines += [TURNED] if "turned(" in text else []
    lines += [
        "@compute @workgroup_size(256)",
        "fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, "
        "@builtin(local_invocation_index) lane: u32) {",
        "    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;",
        "    if (i >= N) { return; }",
    ]
    for a in axes:
        inner = " * ".join(f"D{b}" for b in axes if b > a)
        lines.append(f"    let a{a} = {f'i / ({inner})' if inner else 'i'}{f' % D{a}' if a else ''};")
    for j in range(n_inputs):
        place = " + ".join([f"O{j}", *(f"a{a} * S{j}_{a}" for a in axes)])
        place += f" + scalars[P{j}] * P{j}_STEP" if moves[j] else ""
        lines.append(f"    let v{j} = x{j}[{place}];")
    for number, (op, operands) in enumerate(steps):
        names = [f"v{o}" if o >= 0 else f"t{-1 - o}" for o in operands]
        lines.append(f"    let t{number} = {FORMULAS[op].format(*names)};")
    to = " + ".join(["Y", *(f"a{a} * Y_{a}" for a in axes)])
    return "\n".join([*lines, f"    y[{to}] = t{len(steps) - 1};", "}"]) + "\n"
