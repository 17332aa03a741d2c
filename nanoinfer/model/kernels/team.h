// The threads that share a kernel's work, and how they wait.
//
// `for_each(count, body)` calls body(0) .. body(count - 1). Items are not shared out beforehand: every thread that is awake
// takes the next few, until there are none. A worker without work looks for more for some microseconds, because
// the next kernel of a pass follows soon, and then sleeps. That makes one wake-up for a whole pass, and an idle engine uses no
// processor.
//
// On a machine with more to do than it has processors, the operating system puts a worker aside for milliseconds, perhaps in
// the middle of an item that all others then wait for. The caller sees it when it waits much longer than an item takes, and the
// worker gets no processor time meanwhile (if it does, its item is just a large one). From then on the caller works alone for a
// while, twice as long each time it happens again.
//
// An item is always computed by one thread, so results do not depend on how many threads there are.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int omp_get_max_threads() __attribute__((weak));  // torch's: what torch.set_num_threads sets

class Team {
    typedef void (*Run)(const void* body, long first, long last);
    static constexpr int MOST = 256, COUNT_BITS = 24;
    static constexpr long LIMIT = (1L << COUNT_BITS) - 1;
    static constexpr long SPIN = 50'000, LATE = 200'000, ALONE = 20'000'000, MOST_ALONE = 320'000'000;  // nanoseconds

    // One word says it all, so that no thread ever sees half of a change: whose turn (16 bits), how many items there are and
    // which is the next to be taken (24 bits each).
    std::atomic<uint64_t> ticket{0};
    std::atomic<long> done{0};
    std::atomic<int> sleepers{0}, epoch{0}, num_workers{0}, taking_part{0};
    std::atomic<bool> busy{false};
    struct Work { Run run; const void* body; } work[2];  // the current kernel's and the next one's, by the turn's parity
    long alone_until = 0, alone_for = ALONE;  // used by whoever has made the team busy
    struct Worker { pthread_t thread; std::atomic<bool> has_item{false}; long time_seen; } workers[MOST];

    static long total_of(uint64_t t) { return t >> COUNT_BITS & LIMIT; }
    static long next_of(uint64_t t) { return t & LIMIT; }

    static long now(clockid_t clock = CLOCK_MONOTONIC) {
        timespec t;
        clock_gettime(clock, &t);
        return t.tv_sec * 1'000'000'000L + t.tv_nsec;
    }

    // Take items as long as there are any: many at a time at first, then fewer, so that all threads end together. Returns how
    // many it has done.
    long help() {
        long items = 0;
        uint64_t t = ticket.load(std::memory_order_acquire);
        while (next_of(t) < total_of(t)) {
            long left = total_of(t) - next_of(t), share = std::max(1L, left / (4 * threads_now()));
            if (!ticket.compare_exchange_weak(t, t + share, std::memory_order_acq_rel)) continue;
            const Work& w = work[t >> 2 * COUNT_BITS & 1];
            w.run(w.body, next_of(t), next_of(t) + share);
            done.fetch_add(share, std::memory_order_release);
            items += share;
            t = ticket.load(std::memory_order_acquire);
        }
        return items;
    }

    int threads_now() const { return taking_part.load(std::memory_order_relaxed) + 1; }

    static void* worker_main(void* number);
    void live(int number) {
        for (;;) {
            int seen = epoch.load(std::memory_order_acquire);
            for (long start = now(); now() - start < SPIN;) {
                uint64_t t = ticket.load(std::memory_order_acquire);
                if (next_of(t) < total_of(t) && number < taking_part.load(std::memory_order_relaxed)) {
                    workers[number].has_item.store(true);
                    help();
                    workers[number].has_item.store(false);
                    start = now();
                }
                __builtin_ia32_pause();
            }
            sleepers.fetch_add(1);
            uint64_t t = ticket.load();
            if (next_of(t) >= total_of(t) || number >= taking_part.load())
                syscall(SYS_futex, &epoch, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
            sleepers.fetch_sub(1);
        }
    }

    void hire(int wanted) {
        for (; num_workers < wanted; num_workers++) {
            Worker& worker = workers[num_workers];
            if (pthread_create(&worker.thread, nullptr, worker_main, (void*)(long)num_workers.load())) return;
            pthread_detach(worker.thread);
        }
    }

    void work_together(Run run, const void* body, long count) {
        uint64_t turn = (ticket.load(std::memory_order_relaxed) >> 2 * COUNT_BITS) + 1;  // it wraps at 2^16
        work[turn & 1] = {run, body};
        done.store(0, std::memory_order_relaxed);
        ticket.store(turn << 2 * COUNT_BITS | (uint64_t)count << COUNT_BITS);
        if (sleepers.load()) {
            epoch.fetch_add(1);
            syscall(SYS_futex, &epoch, FUTEX_WAKE_PRIVATE, MOST, nullptr, nullptr, 0);
        }
        long start = now(), items = help(), end = now();
        wait_for_all(count, end, LATE + (items ? 4 * (end - start) / items : 0));
    }

    // The processor time of a worker, in nanoseconds.
    static long time_of(const Worker& worker) {
        clockid_t clock;
        return pthread_getcpuclockid(worker.thread, &clock) ? 0 : now(clock);
    }

    // Workers may still be in the middle of an item. If the system has put one aside, it needs this processor.
    void wait_for_all(long count, long start, long late) {
        long waited = 0, seen = 0;
        for (int spins = 0; done.load(std::memory_order_acquire) < count; waited = now() - start) {
            spins++ < 1000 ? __builtin_ia32_pause() : (void)sched_yield();
            if (waited <= late || seen) continue;
            seen = waited;
            for (int i = 0; i < threads_now() - 1; i++) workers[i].time_seen = workers[i].has_item ? time_of(workers[i]) : -1;
        }
        bool aside = false;  // whether one of those that had an item has computed for less than half of the time since
        for (int i = 0; i < threads_now() - 1 && seen && waited - seen > LATE; i++)
            aside |= workers[i].time_seen >= 0 && time_of(workers[i]) - workers[i].time_seen < (waited - seen) / 2;
        if (aside) {
            alone_until = start + waited + alone_for;
            alone_for = std::min(2 * alone_for, MOST_ALONE);
        } else if (start > alone_until + alone_for) {
            alone_for = ALONE;  // none was put aside for as long as this
        }
    }

  public:
    // After a fork the child has no workers; it hires its own when it needs them.
    void forget_workers() {
        ticket = 0, sleepers = 0, num_workers = 0, taking_part = 0;
        busy = false;
    }

    void for_each(Run run, const void* body, long count) {
        int wanted = std::min<long>({omp_get_max_threads ? omp_get_max_threads() : 1, count, MOST});
        if (wanted > 1 && count <= LIMIT && !busy.exchange(true, std::memory_order_acquire)) {
            if (now() < alone_until) return busy.store(false, std::memory_order_release), run(body, 0, count);
            hire(wanted - 1);
            taking_part.store(std::min(wanted - 1, num_workers.load()), std::memory_order_relaxed);
            work_together(run, body, count);
            busy.store(false, std::memory_order_release);
        } else {
            run(body, 0, count);  // alone: one item, one thread, or another thread's kernel is using the team
        }
    }
};

inline Team team;
inline void* Team::worker_main(void* number) { team.live((int)(long)number); return nullptr; }
__attribute__((constructor)) static void at_fork() { pthread_atfork(nullptr, nullptr, [] { team.forget_workers(); }); }

// Calls body(i) for i in 0 .. count - 1, on as many threads as torch may use. Returns when all have been done.
template <class Body>
inline void for_each(long count, const Body& body) {
    team.for_each([](const void* b, long first, long last) {
        for (long i = first; i < last; i++) (*(const Body*)b)(i);
    }, &body, count);
}

// The same for rows of `size` elements: neighbours are computed together, so that an item is worth handing out.
template <class Body>
inline void for_each_row(long rows, long size, const Body& body) {
    long together = std::max(1L, 8192 / std::max(1L, size));
    for_each((rows + together - 1) / together, [&](long item) {
        for (long row = item * together; row < std::min(rows, (item + 1) * together); row++) body(row);
    });
}
