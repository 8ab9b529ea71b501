// SPDX-License-Identifier: Apache-2.0
// A kernel launch: the device's limits, and host threads that execute the blocks.
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "bounds.h"
#include "placement.h"
#include "report.h"
#include "shadow.h"
#include "state.h"
#include "traffic.h"

const char* cudaGetErrorName(cudaError_t code) {
  if (code == cudaErrorInvalidClusterSize) return "cudaErrorInvalidClusterSize";
  return code == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidValue";
}

const char* cudaGetErrorString(cudaError_t code) {
  if (code == cudaErrorInvalidClusterSize) return "cluster misconfiguration";
  return code == cudaSuccess ? "no error" : "invalid argument";
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const opforge::sim::Settings& settings = opforge::sim::settings;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = int(settings.multiprocessors);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = int(settings.most_shared_per_block);
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = int(settings.capability_major);
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = int(settings.capability_minor);
      break;
  }
  return cudaSuccess;
}

extern "C" __attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, size_t);

namespace opforge::sim {

Settings settings;

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

Code code_around(const void* function) {
  static std::mutex lock;
  static std::map<const void*, Code> known;
  const std::lock_guard hold(lock);
  if (const auto found = known.find(function); found != known.end()) return found->second;
  struct Search {
    uintptr_t wanted;
    Code result;
  } search{reinterpret_cast<uintptr_t>(function), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const uintptr_t low = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && s.wanted >= low && s.wanted - low < segment.p_memsz) {
            s.result = {low, low + segment.p_memsz};
          }
        }
        return int(s.result.high != 0);
      },
      &search);
  return known[function] = search.result;
}

namespace {

__thread Code device_code;

// Leaves the thread that a signal interrupted for good.
void leave(Worker& w) {
  w.abandoned = true;
  switch_to(w.running->context, w.scheduler, w.own_stack, true);
}

const gregset_t& registers(const void* context) {
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
}

uintptr_t interrupted_at(const void* context) { return uintptr_t(registers(context)[REG_RIP]); }

// Comes a few times a second while a launch runs.
void on_tick(int, siginfo_t*, void* context) {
  Worker* w = worker;
  if (w == nullptr || now() - w->started < double(settings.timeout)) return;
  const uintptr_t pc = interrupted_at(context);
  w->late = reinterpret_cast<const void*>(pc);
  // Elsewhere it may hold a lock: check_time() or the scheduler will see to it.
  if (in_kernel && pc >= device_code.low && pc < device_code.high) leave(*w);
}

constexpr int kTick = SIGURG;  // ignored by default, so a late one does no harm
constexpr int kFaults[] = {SIGSEGV, SIGBUS};
struct sigaction before[std::size(kFaults)];  // whose faults they are outside device code

void on_fault(int signal, siginfo_t* info, void* context) {
  const uintptr_t pc = interrupted_at(context);
  if (in_kernel) {  // or in a function that it called, memcpy perhaps
    const void* at = worker->copies;
    const bool writes = (registers(context)[REG_ERR] & 2) != 0;  // of a page fault on x86
    worker->crashed = {at ? at : reinterpret_cast<const void*>(pc + 1), info->si_addr, writes};
    worker->copies = nullptr;
    leave(*worker);
  }
  sigaction(signal, &before[signal == SIGSEGV ? 0 : 1], nullptr);  // faults again, for its owner
}

struct sigaction handler(void (*function)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = function;
  // ONSTACK: a thread may have run out of its own. NODEFER: handlers are left by switching away.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK;
  return action;
}

// Handles bad addresses of device code while it lives. AddressSanitizer has its own way with them.
class FaultHandlers {
 public:
  FaultHandlers() {
    if (__sanitizer_start_switch_fiber != nullptr) return;
    const auto action = handler(on_fault);
    for (size_t i = 0; i < std::size(kFaults); ++i) sigaction(kFaults[i], &action, &before[i]);
    installed_ = true;
  }
  ~FaultHandlers() {
    if (!installed_) return;
    for (size_t i = 0; i < std::size(kFaults); ++i) sigaction(kFaults[i], &before[i], nullptr);
  }
  FaultHandlers(const FaultHandlers&) = delete;

 private:
  bool installed_ = false;
};

// A timer and a stack for signal handlers, for this host thread while it lives.
class Watchdog {
 public:
  Watchdog() : stack_(64 << 10) {
    const stack_t alternate{stack_.data(), 0, stack_.size()};
    sigaltstack(&alternate, &previous_);
    const auto action = handler(on_tick);
    sigaction(kTick, &action, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kTick;
    event._sigev_un._tid = pid_t(syscall(SYS_gettid));
    running_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    const itimerspec tick{{0, 200'000'000}, {0, 200'000'000}};
    if (running_) timer_settime(timer_, 0, &tick, nullptr);
  }
  ~Watchdog() {
    if (running_) timer_delete(timer_);
    sigaltstack(&previous_, nullptr);
  }
  Watchdog(const Watchdog&) = delete;

 private:
  std::vector<char> stack_;
  stack_t previous_{};
  timer_t timer_{};
  bool running_ = false;
};

Stack find_this_threads_stack() {
  pthread_attr_t attributes;
  void* low = nullptr;
  size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  return {static_cast<char*>(low), static_cast<char*>(low) + size};
}

// Found once for each host thread: for the first one libc reads the list of all mappings, which has
// a few for each stack of a simulated thread and then takes 20 ms.
const Stack& this_threads_stack() {
  thread_local const Stack stack = find_this_threads_stack();
  return stack;
}

size_t stacks_needed(const Launch& l) {
  return (size_t(l.threads) * l.cluster + Stacks::kCount - 1) / Stacks::kCount;
}

void work(Launch& l) {
  Worker w;
  w.launch = &l;
  w.own_stack = this_threads_stack();
  for (size_t n = stacks_needed(l); n > 0; --n) {
    const Stacks& more = *w.stacks.emplace_back(std::make_unique<Stacks>());
    for (size_t i = Stacks::kCount; i-- > 0;) w.free_stacks.push_back(more[i]);
  }
  const size_t threads = size_t(l.threads);
  w.fibers.resize(threads * l.cluster);
  w.order.resize(w.fibers.size());
  std::iota(w.order.begin(), w.order.end(), 0);
  w.blocks.resize(l.cluster);
  const int bx = int(l.block.x), by = int(l.block.y);
  for (Block& b : w.blocks) {
    b.rank = int(&b - w.blocks.data());
    b.fibers = std::span(w.fibers).subspan(threads * size_t(b.rank), threads);
    b.warps.resize((threads + kWarp - 1) / kWarp);
    for (int i = 0; i < l.threads; ++i) {
      Fiber& f = b.fibers[size_t(i)];
      f.block = &b;
      f.number = i;
      f.index = {Index::of(i % bx), Index::of(i / bx % by), Index::of(i / bx / by)};
    }
  }
  blockDim = {Index::of(bx), Index::of(by), Index::of(l.block.z)};
  gridDim = {Index::of(l.grid.x), Index::of(l.grid.y), Index::of(l.grid.z)};
  device_code = code_around(l.kernel.function);
  w.started = now();
  worker = &w;
  {
    const Watchdog watchdog;
    for (;;) {
      const int64_t turn = l.next.fetch_add(1);
      if (turn >= l.blocks / l.cluster || l.stop) break;
      const int64_t number = l.order.empty() ? turn : l.order[size_t(turn)];
      if (settings.seed >= 0)
        w.random.seed(uint64_t(settings.seed) * 0x9e3779b97f4a7c15u + uint64_t(number));
      execute(w, number);
    }
  }
  worker = nullptr;
  for (const Block& b : w.blocks) {
    for (const SharedPart& part : b.shared) free(part.allocated);
  }
}

int host_threads(const Launch& l) {
  // One where runs are to be the same every time; the detectors' shadow then needs no locks, too.
  if (settings.race || settings.traffic || settings.seed >= 0) return 1;
  cpu_set_t cores;
  const int most = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  // Each maps two thousand pieces of memory, its stacks; and it costs as much as some thousand
  // simulated threads.
  const int64_t worthwhile = std::min<int64_t>(l.blocks * l.threads / 8192, l.blocks / l.cluster);
  const int room = int(16 / stacks_needed(l));  // a process has but so many mappings
  return int(std::clamp<int64_t>(worthwhile, 1, std::min(most, room)));
}

// How much dynamic shared memory each kernel may have.
std::mutex allowed_lock;
std::map<const void*, int64_t> allowed;

int64_t most_dynamic_shared(const void* kernel) {
  const std::lock_guard hold(allowed_lock);
  const auto found = allowed.find(kernel);
  return std::min(std::max(settings.shared_per_block, found == allowed.end() ? 0 : found->second),
                  settings.most_shared_per_block);
}

// What cudaLaunchKernelEx says on an H200 to each of these, those about clusters by its manual. (A
// launch by <<<>>> has other names.)
cudaError_t check(const cudaLaunchConfig_t& c, const Kernel& kernel, unsigned cluster) {
  const dim3 g = c.gridDim, b = c.blockDim;
  const auto within = [](unsigned value, int64_t most) { return value >= 1 && value <= most; };
  if (!within(g.x, 0x7fffffff) || !within(g.y, 65535) || !within(g.z, 65535) ||
      !within(b.x, 1024) || !within(b.y, 1024) || !within(b.z, 64) ||
      int64_t(b.x) * b.y * b.z > settings.threads_per_block ||
      int64_t(c.dynamicSmemBytes) > most_dynamic_shared(kernel.function)) {
    return cudaErrorInvalidValue;
  }
  if (!within(cluster, settings.blocks_per_cluster)) return cudaErrorInvalidClusterSize;
  if (g.x % cluster != 0) return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace

cudaError_t allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > settings.most_shared_per_block) return cudaErrorInvalidValue;
  const std::lock_guard hold(allowed_lock);
  allowed[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const Kernel& kernel) {
  static std::mutex one_at_a_time;  // streams are not simulated: launches follow each other
  const std::lock_guard hold(one_at_a_time);
  Launch l;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) l.cluster = attribute.val.clusterDim.x;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) l.overlaps = true;
  }
  if (const cudaError_t code = check(config, kernel, l.cluster); code != cudaSuccess) return code;
  check_bounds(config, kernel, __builtin_return_address(0));
  check_placement(config, kernel, __builtin_return_address(0));
  l.grid = config.gridDim;
  l.block = config.blockDim;
  l.kernel = kernel;
  l.shared_bytes = config.dynamicSmemBytes;
  l.threads = int(l.block.x * l.block.y * l.block.z);
  l.blocks = int64_t(l.grid.x) * l.grid.y * l.grid.z;
  if (settings.seed >= 0) {
    l.order.resize(size_t(l.blocks / l.cluster));
    std::iota(l.order.begin(), l.order.end(), 0u);
    std::shuffle(l.order.begin(), l.order.end(), std::mt19937_64(uint64_t(settings.seed)));
  }
  shadow::begin_launch(l);
  traffic::begin_launch(l);
  const FaultHandlers handlers;
  std::vector<std::thread> helpers;
  for (int i = host_threads(l); i > 1; --i) {
    helpers.emplace_back([&l] {
      try {
        work(l);
      } catch (const std::bad_alloc&) {  // the blocks are left to the others
      }
    });
  }
  work(l);
  for (std::thread& helper : helpers) helper.join();
  traffic::end_launch(l);
  std::fflush(stdout);  // what kernels printed comes before what the host prints next
  throw_reports();
  return cudaSuccess;
}

}  // namespace opforge::sim

// For Python: one setting by name; false if there is none of that name.
extern "C" __attribute__((visibility("default"))) bool opforge_sim_set(const char* name,
                                                                       int64_t value) {
  using opforge::sim::settings;
  const std::map<std::string, int64_t*> known = {
      {"multiprocessors", &settings.multiprocessors},
      {"threads_per_block", &settings.threads_per_block},
      {"shared_per_block", &settings.shared_per_block},
      {"most_shared_per_block", &settings.most_shared_per_block},
      {"blocks_per_cluster", &settings.blocks_per_cluster},
      {"capability_major", &settings.capability_major},
      {"capability_minor", &settings.capability_minor},
      {"seed", &settings.seed},
      {"timeout", &settings.timeout},
      {"race", &settings.race},
      {"traffic", &settings.traffic},
      {"placement", &settings.placement},
  };
  const auto found = known.find(name);
  if (found == known.end()) return false;
  *found->second = value;
  return true;
}
