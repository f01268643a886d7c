// Runs the CTAs of a kernel. It knows no shuffle, and is compiled once for all of them.
#include "emulation.h"

#include <sched.h>
#include <sys/mman.h>

#include <thread>
#include <vector>

namespace emulation {

thread_local Cta* cta = nullptr;
constexpr size_t kStack = 128 << 10;

using Kernel = void (*)(const void*);

struct Launch {
  Kernel kernel;
  const void* argument;
  int ctas, threads, shared_bytes;
};
thread_local const Launch* launched;

void enter() {
  launched->kernel(launched->argument);
  Fiber& fiber = cta->fibers[cta->current];
  fiber.done = true;
  --cta->live;
  ++cta->progress;
  // Who waits at a barrier of all threads does not wait for those that have ended.
  Barrier& all = cta->barriers[0];
  if (all.arrived > 0 && all.arrived == cta->live) {
    all.arrived = 0;
    ++all.generation;
  }
  _longjmp(cta->scheduler, 1);
}

// Returns when the fiber yields or has ended.
void resume(Cta& state, Fiber& fiber) {
  if (_setjmp(state.scheduler)) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.beginning);
}

void run_cta(const Launch* launch, int number) {
  const int threads = launch->threads;
  Cta state;
  std::vector<Fiber> fibers(threads);
  std::vector<Warp> warps(threads / kLanes);
  state.fibers = fibers.data();
  state.warps = warps.data();
  state.live = threads;
  state.block = {unsigned(number), 0, 0};
  state.grid = {unsigned(launch->ctas), 1, 1};
  state.threads = {unsigned(threads), 1, 1};
  const size_t shared = (launch->shared_bytes + 255) / 128 * 128;
  state.memory = static_cast<unsigned char*>(aligned_alloc(128, shared));
  memset(state.memory, 0xCD, shared);
  void* const stacks = mmap(nullptr, kStack * threads, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  cta = &state;
  launched = launch;
  for (int t = 0; t < threads; ++t) {
    ucontext_t& context = state.fibers[t].beginning;
    getcontext(&context);
    context.uc_stack.ss_sp = static_cast<char*>(stacks) + kStack * t;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, enter, 0);
  }
  while (state.live > 0) {
    const long long before = state.progress;
    for (int t = 0; t < threads; ++t) {
      Fiber& fiber = state.fibers[t];
      if (fiber.done || (fiber.generation && *fiber.generation == fiber.joined)) continue;
      state.current = t;
      resume(state, fiber);
    }
    if (state.progress == before) sched_yield();  // all wait for another CTA
  }
  munmap(stacks, kStack * threads);
  free(state.memory);
}

}  // namespace emulation

extern "C" void run(emulation::Kernel kernel, const void* argument, int ctas, int threads, int shared_bytes) {
  const emulation::Launch launch{kernel, argument, ctas, threads, shared_bytes};
  std::vector<std::thread> running;
  for (int number = 0; number < ctas; ++number) running.emplace_back(emulation::run_cta, &launch, number);
  for (auto& each : running) each.join();
}
