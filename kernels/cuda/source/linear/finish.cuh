// What happens to a finished sum: bias, activation, residual, rounding. `LinearOut` numbers the forms.
#pragma once

struct Finish {
    const float* bias;
    void* out;
    const void* gate;
    u32 n;
    u32 form;
    // Of what is added or stored as f32; of the sigmoid's argument in form 7.
    float factor = 1.0f;
    // Form 7: of gate and value.
    float limit = 0.0f;
};

// (v + 1) g sigmoid(factor g), gate and value limited by comparisons that NaN passes.
DEVICE float clamped_swiglu(float gate, float value, float factor, float limit) {
    gate = gate > limit ? limit : gate;
    value = value > limit ? limit : value;
    value = value < 0.0f - limit ? 0.0f - limit : value;
    return times_sigmoid(gate, factor) * (value + 1.0f);
}

template <class T> DEVICE void finish(const Finish& to, u32 row, u32 column, float value) {
    const u64 at = (u64)row * to.n + column;
    if (to.bias) value += to.bias[column];
    T* out = static_cast<T*>(to.out);
    float* wide = static_cast<float*>(to.out);
    switch (to.form) {
        case 0: out[at] = of_float<T>(value); break;
        // NaN must show, not become 0.
        case 1: out[at] = of_float<T>(value < 0.0f ? 0.0f : value); break;
        case 2: out[at] = of_float<T>(gelu(value)); break;
        case 3: {
            const float gate = to_float(static_cast<const T*>(to.gate)[at]);
            out[at] = of_float<T>(silu(gate) * value);
            break;
        }
        case 4: wide[at] = wide[at] + value * to.factor; break;
        case 5: wide[at] = value * to.factor; break;
        case 6: {
            const float gate = to_float(static_cast<const T*>(to.gate)[at]);
            out[at] = of_float<T>(gelu_tanh(gate) * value);
            break;
        }
        default: {
            const float gate = to_float(static_cast<const T*>(to.gate)[at]);
            out[at] = of_float<T>(clamped_swiglu(gate, value, to.factor, to.limit));
            break;
        }
    }
}

// Sums that another library made: a block for 1024 columns of a row.
template <class T>
DEVICE void epilogue(const float* sums, const Finish& to) {
    const u32 end = smaller(to.n, (blockIdx.y + 1) * 1024);
    for (u32 column = blockIdx.y * 1024 + threadIdx.x; column < end; column += blockDim.x) {
        finish<T>(to, blockIdx.x, column, sums[(u64)blockIdx.x * to.n + column]);
    }
}

KERNEL(epilogue_bf16, 256,
       (const float* sums, const float* bias, void* out, const void* gate, u32 n, u32 form,
        float factor, float limit)) {
    epilogue<bf16>(sums, {bias, out, gate, n, form, factor, limit});
}

KERNEL(epilogue_f32, 256,
       (const float* sums, const float* bias, void* out, const void* gate, u32 n, u32 form,
        float factor, float limit)) {
    epilogue<float>(sums, {bias, out, gate, n, form, factor, limit});
}
