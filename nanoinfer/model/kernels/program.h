// How a kernel is called: with one array of 8-byte words, whatever its arguments are. So a call can be kept, with its function,
// and made again: a list of calls is a program, and `replay` runs it without returning to Python in between.
#pragma once
#include <cstdint>
#include <cstring>
#include <time.h>
#include <tuple>
#include <type_traits>
#include <utility>

typedef void Kernel(const int64_t* words);

// A word holds a pointer, an integer, or a double for any kind of float.
template <class A>
static A from_word(int64_t word) {
    if constexpr (std::is_pointer_v<A>) return (A)word;
    else if constexpr (std::is_floating_point_v<A>) { double d; memcpy(&d, &word, 8); return (A)d; }
    else return (A)word;
}

template <class... A, size_t... I>
static void call(void (*function)(A...), const int64_t* words, std::index_sequence<I...>) {
    function(from_word<A>(words[I])...);
}

template <class... A>
static void call(void (*function)(A...), const int64_t* words) {
    call(function, words, std::index_sequence_for<A...>());
}

// The entry point `name` of a kernel, which is any function of pointers, integers and floats.
#define EXPORT(name, ...) extern "C" void name(const int64_t* words) { call(__VA_ARGS__, words); }

struct Call { Kernel* kernel; const int64_t* words; };

// Makes `count` calls in order. `nanoseconds` [count]: where to add up the time of each; null: they are not timed.
static void replay_calls(const Call* calls, long count, int64_t* nanoseconds) {
    auto now = [] { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1'000'000'000LL + t.tv_nsec; };
    for (long i = 0; i < count; i++) {
        int64_t start = nanoseconds ? now() : 0;
        calls[i].kernel(calls[i].words);
        if (nanoseconds) nanoseconds[i] += now() - start;
    }
}
