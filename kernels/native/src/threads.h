// The threads that run a step together.
//
// Knows how they are woken, wait for one another, and share out work. Knows nothing of what the work is.
//
// A step is one call of one function on every thread; between its phases all of them meet at a barrier. They wait by
// spinning, for a phase lasts microseconds, but soon give their core away while they do: on a machine whose every core
// computes, the one who is waited for may need it, and so may the event loop next door. Work is shared out by a
// counter, so that a thread that lost its core for a while holds up the others by one item at most.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

namespace rota {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

class Team {
   public:
    explicit Team(int threads) : size_(threads < 1 ? 1 : threads) {
        for (int i = 1; i < size_; ++i) threads_.emplace_back([this, i] { live(i); });
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    ~Team() {
        {
            std::lock_guard<std::mutex> held(mutex_);
            leaving_ = true;
            ++call_;
        }
        woken_.notify_all();
        for (auto& it : threads_) it.join();
    }

    int size() const { return size_; }

    // Runs `work(thread)` on every thread, the caller's being 0, and returns when all have.
    void run(const std::function<void(int)>& work) {
        if (size_ == 1) return work(0);
        {
            std::lock_guard<std::mutex> held(mutex_);
            work_ = &work;
            left_.store(size_ - 1, std::memory_order_relaxed);
            ++call_;
        }
        woken_.notify_all();
        work(0);
        for (int spins = 0; left_.load(std::memory_order_acquire) > 0; ++spins) wait(spins);
    }

    // All threads of `run` meet here.
    void barrier() {
        if (size_ == 1) return;
        const int turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) wait(spins);
    }

   private:
    static void wait(int spins) {
        if (spins < 4000)
            pause();
        else
            sched_yield();
    }

    void live(int thread) {
        long seen = 0;
        for (;;) {
            const std::function<void(int)>* work;
            {
                std::unique_lock<std::mutex> held(mutex_);
                woken_.wait(held, [&] { return call_ != seen; });
                seen = call_;
                if (leaving_) return;
                work = work_;
            }
            (*work)(thread);
            left_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }

    const int size_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable woken_;
    const std::function<void(int)>* work_ = nullptr;
    long call_ = 0;
    bool leaving_ = false;
    alignas(64) std::atomic<int> left_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> turn_{0};
};

// Hands out 0, 1, 2 .. to whichever thread asks next; one for each phase of a step.
struct alignas(64) Counter {
    std::atomic<int> next{0};

    // The next of `count`, `some` at a time.
    bool take(int count, int some, int& first, int& end) {
        first = next.fetch_add(some, std::memory_order_relaxed);
        end = first + some < count ? first + some : count;
        return first < count;
    }

    // Long runs of neighbours first and shorter ones later, so that all end together: Polychronopoulos and Kuck,
    // "Guided self-scheduling", 1987.
    bool take_guided(int count, int threads, int& first, int& end) {
        first = next.load(std::memory_order_relaxed);
        do {
            if (first >= count) return false;
            const int size = (count - first) / (2 * threads);
            end = first + (size < 1 ? 1 : size);
        } while (!next.compare_exchange_weak(first, end, std::memory_order_relaxed));
        return true;
    }
};

}  // namespace rota
