"""Trace, Program, verifier, printed form."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import Spec, nn, ops, trace
from candlewick.program import Program, Value


class Head(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(12)
        self.q, self.k = nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.scale = nn.Constant(np.ones(12, np.float32))

    def __call__(self, x, cache, pos):
        h = self.norm(x) * self.scale
        q, k = nn.split_heads(self.q(h), 3), nn.split_heads(self.k(h), 3)
        cache = cache.update(k, k, pos)
        return x + nn.merge_heads(ops.attention(q, cache.k, cache.v, start=pos, causal=True))


def example() -> Program:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.heads = [Head()]

    model = Model()
    model.parameters()
    model.set_dtypes({"heads.0.q.weight": "f16", "heads.0.k.weight": "f16"})
    cache = nn.KVCache.new("cache", 1, 3, 8, 4)
    return trace(
        lambda x, pos: {"y": model.heads[0](x * 2.0, cache, pos)}, {"x": Spec((1, 2, 12))}, ("pos",), "example"
    )


PRINTED = """\
program example(%x: f32[1,2,12], $pos: i32[])
  %0: f32[1,2,12] = mul(%x, 2)
  %1: f32[1,2,12] = layer_norm(%0, @heads.0.norm.weight, @heads.0.norm.bias)                           # heads.0.norm
  %2: f32[1,2,12] = mul(%1, @heads.0.scale)                                                            # heads.0
  %3: f32[1,2,12] = linear(%2, @heads.0.q.weight, bias=@heads.0.q.bias)                                # heads.0.q
  %4: f32[1,2,3,4] = reshape(%3) shape=(1,2,3,4)                                                       # heads.0
  %5: f32[1,3,2,4] = transpose(%4) axes=(0,2,1,3)                                                      # heads.0
  %6: f32[1,2,12] = linear(%2, @heads.0.k.weight)                                                      # heads.0.k
  %7: f32[1,2,3,4] = reshape(%6) shape=(1,2,3,4)                                                       # heads.0
  %8: f32[1,3,2,4] = transpose(%7) axes=(0,2,1,3)                                                      # heads.0
  !cache.k: f32[1,3,8,4] = update(!cache.k, %8, $pos) axis=2                                           # heads.0
  !cache.v: f32[1,3,8,4] = update(!cache.v, %8, $pos) axis=2                                           # heads.0
  %11: f32[1,3,2,4] = attention(%5, !cache.k, !cache.v, start=$pos) causal=True                        # heads.0
  %12: f32[1,2,3,4] = transpose(%11) axes=(0,2,1,3)                                                    # heads.0
  %13: f32[1,2,12] = reshape(%12) shape=(1,2,12)                                                       # heads.0
  %14: f32[1,2,12] = add(%0, %13)                                                                      # heads.0
  return y=%14
"""


def test_printed_form():
    assert str(example()) == PRINTED


def test_weights_and_states_by_name():
    program = example()
    assert program.weights["heads.0.q.weight"].type == "f16[12,12]"
    assert program.weights["heads.0.scale"].kind == "constant"
    assert set(program.states) == {"cache.k", "cache.v"}


def test_json_round_trip():
    program = example()
    assert Program.from_json(program.to_json()) == program


def test_verifier_names_the_instruction():
    program = example()
    first, second, *rest = program.instructions
    with pytest.raises(
        ValueError, match="instruction 0 `layer_norm` in heads.0.norm: reads %0, which no earlier instruction makes"
    ):
        program.replace(instructions=(second, first, *rest)).verify()
    wrong = first._replace(out=first.out._replace(shape=(1, 2, 13)))
    with pytest.raises(
        ValueError, match=r"instruction 0 `mul`: makes f32\[1, 2, 12\], but its output is written as f32\[1,2,13\]"
    ):
        program.replace(instructions=(wrong, second, *rest)).verify()
    with pytest.raises(ValueError, match="no such op; the op table has linear"):
        program.replace(instructions=(first._replace(op="conv9d"), second, *rest)).verify()
    with pytest.raises(ValueError, match="output z is %nowhere"):
        program.replace(outputs={"z": Value("nowhere", "f32", ())}).verify()


def test_shape_errors_say_both_sides_and_where():
    class Wrong(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(5, 6)

    class Model(nn.Module):
        def __init__(self) -> None:
            self.layer = Wrong()

    model = Model()
    model.parameters()
    with pytest.raises(ValueError, match=r"linear: x is f32\[2, 4\], w is f32\[6, 5\].*\(in layer.fc\)"):
        trace(lambda x: model.layer.fc(x), {"x": Spec((2, 4))})
    with pytest.raises(ValueError, match=r"add: f32\[2, 4\] and f32\[3\] do not broadcast"):
        trace(lambda x, y: x + y, {"x": Spec((2, 4)), "y": Spec((3,))})


@pytest.mark.parametrize(
    "fn", [lambda x, n: x + n, lambda x, n: ops.sum(n), lambda x, n: ops.relu(n), lambda x, n: ops.linear(n, x)]
)
def test_whole_numbers_are_not_read_as_floats(fn):
    with pytest.raises(ValueError, match=r"is i32\[2, 4\], wanted f32; ops.cast turns one into the other"):
        trace(fn, {"x": Spec((2, 4)), "n": Spec((2, 4), "i32")})


def test_an_index_is_a_whole_number():
    with pytest.raises(ValueError, match=r"start is f32\[\], wanted i32"):
        trace(lambda x, at: ops.rows(x, at, 1), {"x": Spec((2, 4))}, {"at": "f32"})


def test_a_failed_trace_leaves_the_next_one_clean():
    with pytest.raises(ZeroDivisionError):
        trace(lambda x: 1 / 0, {"x": Spec((1,))})
    assert len(trace(lambda x: x + 1.0, {"x": Spec((1,))}).instructions) == 1


def test_model_code_cannot_look_at_data_or_run_outside_a_trace():
    with pytest.raises(TypeError, match="no data while the model is traced"):
        trace(lambda x: x if x else -x, {"x": Spec((1,))})
    with pytest.raises(RuntimeError, match="outside of trace"):
        ops.relu(nn.State("s", (1,)))
    with pytest.raises(ValueError, match="call parameters\\(\\) on the whole model first"):
        trace(lambda x: ops.linear(x, nn.Parameter((3, 4))), {"x": Spec((2, 4))})
    with pytest.raises(TypeError, match="takes operands"):
        trace(lambda x: ops.relu(x, colour="red"), {"x": Spec((2, 4))})
