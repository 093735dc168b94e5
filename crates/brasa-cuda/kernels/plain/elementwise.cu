// unary, binary, choose, cast: y[i] from the elements of up to three values at the same place of four axes; y is dense. An
// operand's stride is 0 along an axis that it repeats.
// clamped_unit: y[i] = (u + 1) · g · σ(α·g) of clamped gates and ups.
// position_scale: y[i] = x[i] · (1 + β·ln(1 + ⌊p/n⌋)), p the position of the row.
// copy: any four-byte elements from strides to strides: transpositions, repetitions, joined values.
// Grid: one thread an element, blocks of 256.
#include "unary.cuh"

KERNEL(unary, UnaryParams) {
    u64 i = thread_number();
    if (i < p.count) {
        float x = p.x.data[place_of((u32)i, p.dims, p.x.strides)];
        p.y[i] = unary_value(p.function, x, p.a, p.b);
    }
}

KERNEL(binary, BinaryParams) {
    u64 i = thread_number();
    if (i >= p.count) {
        return;
    }
    float a = p.a.data[place_of((u32)i, p.dims, p.a.strides)], b = p.b.data[place_of((u32)i, p.dims, p.b.strides)];
    float y;
    switch (p.function) {
        case BINARY_ADD: y = a + b; break;
        case BINARY_SUB: y = a - b; break;
        case BINARY_MUL: y = a * b; break;
        case BINARY_DIV: y = a / b; break;
        default: y = fmaxf(a, b); break;
    }
    p.y[i] = y;
}

KERNEL(clamped_unit, ClampedUnitParams) {
    u64 i = thread_number();
    if (i < p.count) {
        float gate = p.gate.data[place_of((u32)i, p.dims, p.gate.strides)], up = p.up.data[place_of((u32)i, p.dims, p.up.strides)];
        p.y[i] = clamped_unit(gate, up, p.alpha, p.limit);
    }
}

KERNEL(position_scale, PositionScaleParams) {
    u64 i = thread_number();
    if (i < p.count) {
        const float steps = (float)(p.positions[i / p.row_elements] / p.step);
        p.y[i] = p.x.data[place_of((u32)i, p.dims, p.x.strides)] * (1.0f + p.beta * logf(1.0f + steps));
    }
}

KERNEL(choose, ChooseParams) {
    u64 i = thread_number();
    if (i >= p.count) {
        return;
    }
    float condition = p.condition.data[place_of((u32)i, p.dims, p.condition.strides)];
    // An integer is 0 where all its bits are; −0 is a float that is 0 as well.
    bool holds = p.of_integers ? __float_as_uint(condition) != 0 : condition != 0.0f;
    const Strided& chosen = holds ? p.a : p.b;
    p.y[i] = chosen.data[place_of((u32)i, p.dims, chosen.strides)];
}

KERNEL(cast, CastParams) {
    u64 i = thread_number();
    if (i >= p.count) {
        return;
    }
    float x = p.x.data[place_of((u32)i, p.dims, p.x.strides)];
    if (p.from_integers && p.to != CAST_U32) {
        x = (float)__float_as_uint(x);
    }
    switch (p.to) {
        case CAST_F16: x = half_to_float(float_to_half(x)); break;
        case CAST_BF16: x = bf16_to_float(float_to_bf16(x)); break;
        // To nearest even; numbers beyond the integers are clamped, NaN is 0.
        case CAST_U32: x = p.from_integers ? x : __uint_as_float(__float2uint_rn(x)); break;
        default: break;
    }
    p.y[i] = x;
}

KERNEL(copy, CopyParams) {
    u64 i = thread_number();
    if (i < p.count) {
        p.y.data[place_of((u32)i, p.dims, p.y.strides)] = p.x.data[place_of((u32)i, p.dims, p.x.strides)];
    }
}
