// What a gate does to the output beside it.
#pragma once
#include "vectors.h"

// Both activations are v * sigmoid(inner(v)): for GELU by tanh because (1 + tanh u) / 2 = sigmoid(2 u), where
// u = sqrt(2 / pi) * (v + 0.044715 v^3).
struct Silu { static Floats inner(Floats v) { return v; } };
struct GeluTanh { static Floats inner(Floats v) { return 1.5957691216f * (v + 0.044715f * v * v * v); } };

// activation(gate) * up
template <class Activation>
inline Floats gated(Floats gate, Floats up) {
    Floats w = Activation::inner(gate);
    Floats e = exp_of_negative(w < 0 ? w : -w);  // e^-|w| never overflows
    Floats sigmoid = (w < 0 ? e : Floats{} + 1.0f) / (1.0f + e);
    return gate * sigmoid * up;
}
