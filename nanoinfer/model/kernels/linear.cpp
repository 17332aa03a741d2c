// y = x W^T (+ bias): x [rows, in], y [rows, out]. product.h says how W is packed and multiplied; finish.h, what becomes of it.
#include "finish.h"
#include "product.h"

// Calls body with the fastest unit that this processor and its operating system let us use (a null pointer of its type).
template <class E, class Body>
static auto with_unit(const Body& body) {
#if defined(HAS_AMX)
    if constexpr (E::STEP == 2)
        if (amx_allowed()) return body((BFloat16Tiles*)nullptr);
#endif
    return body((Vectors<E>*)nullptr);
}

// How W is packed: the outputs of a group, and the number of inputs that it is filled up to a multiple of.
template <class E> static long columns_of() { return with_unit<E>([](auto* unit) { return (long)unit->COLUMNS; }); }
template <class E> static long inputs_of() { return with_unit<E>([](auto* unit) { return (long)unit->INPUTS; }); }

// The instructions that multiply, as /proc/cpuinfo names them.
template <class E>
static const char* instructions_of() {
    return with_unit<E>([](auto* unit) {
        if (!std::is_same_v<decltype(unit), Vectors<E>*>) return "amx_bf16";
#if defined(__AVX512BF16__)
        if (E::STEP == 2) return "avx512_bf16";
#endif
        return LANES == 16 ? "avx512f" : "avx2";
    });
}

// The product with as many groups as `out` results need.
template <class E, class Finish>
static void multiply(const typename E::T* x, const float* packed, long rows, long in, long out, const Finish& finish) {
    with_unit<E>([&](auto* unit) {
        typedef std::remove_pointer_t<decltype(unit)> Unit;
        long made = Finish::template made<Unit::COLUMNS>();
        product<Unit>(x, packed, rows, in, (out + made - 1) / made, finish);
    });
}

template <class E>
static void linear(const typename E::T* x, const float* packed, const typename E::T* bias, typename E::T* y, long rows,
                   long in, long out) {
    multiply<E>(x, packed, rows, in, out, Store<E>{bias, y, out});
}

// y = activation(gate) * up, where W and bias have [gate, up] one after the other, and are packed half a group each by turns.
// `delta` and `adapters`: see StoreGated.
template <class E, class Activation>
static void gated_linear(const typename E::T* x, const float* packed, const typename E::T* bias, const typename E::T* delta,
                         const int32_t* adapters, typename E::T* y, long rows, long in, long out) {
    multiply<E>(x, packed, rows, in, out, StoreGated<E, Activation>{bias, y, out, delta, adapters});
}

// Each row's largest output and its number: the first of equals, and the first NaN if there is one. No output is stored.
template <class E>
static void linear_argmax(const typename E::T* x, const float* packed, const typename E::T* bias, int64_t* numbers,
                          float* largest, long rows, long in, long out) {
    long most_groups = (out + LANES - 1) / LANES;  // a group has at least LANES columns
    static thread_local std::vector<Largest> found;
    found.resize(std::max<long>(found.size(), rows * most_groups));
    multiply<E>(x, packed, rows, in, out, FindLargest<E>{bias, found.data(), out, most_groups});
    for (long row = 0; row < rows; row++) {
        Largest best = found[row * most_groups];
        long groups = (out + columns_of<E>() - 1) / columns_of<E>();
        for (long group = 1; group < groups; group++)
            if (Largest next = found[row * most_groups + group]; above(next.value, best.value)) best = next;
        numbers[row] = best.number, largest[row] = best.value;
    }
}
