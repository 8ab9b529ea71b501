# SPDX-License-Identifier: Apache-2.0
"""Values sent to the blocks of a cluster: right kernels are right, wrong ones are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sim_kernels import EACH_MACHINE, FINE, WAYS, Call, load_kernels, works, write_kernels

from opforge.errors import SimulationError

pytestmark = pytest.mark.sim

RIGHT = r"""
using namespace opforge;

// Values that are on their way to every block of the cluster, in turn by two barriers.
struct Mail {
  Barrier barrier[2];
  int64_t value[2][8 * 2];  // of the warps
};

__device__ Mail& start_mail() {
  Mail& mail = opforge::shared<Mail>();
  if (threadIdx.x == 0) init(mail.barrier[0], 1), init(mail.barrier[1], 1), publish_barriers();
  cluster_arrive_relaxed();
  cluster_wait();
  return mail;
}

// Each warp has a value. The sum is over all of the cluster, and the same in every thread.
__device__ int64_t sum_by_mail(Mail& mail, int64_t value, int turn) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = turn % 2;
  const int count = cluster_size() * 2;
  __syncwarp();  // its lanes have read what is to be overwritten
  if (threadIdx.x == 0) arrive_expecting(mail.barrier[half], count * 8);
  if (lane < cluster_size()) {
    send(value, mail.value[half][cluster_rank() * 2 + warp], mail.barrier[half], lane);
  }
  value = -1;  // it is on its way
  wait(mail.barrier[half], turn / 2 % 2);
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += mail.value[half][(i + lane) % count];
  return sum;
}

__global__ void mail_sum(const int64_t* x, int64_t* y) {
  Mail& mail = start_mail();
  const int warp = threadIdx.x / 32, i = blockIdx.x * blockDim.x + threadIdx.x;
  int64_t sum = 0;
  for (int turn = 0; turn < 7; ++turn) {
    sum = 3 * sum + sum_by_mail(mail, x[blockIdx.x * 2 + warp] + turn, turn);
  }
  y[i] = sum;
}

// Thread 0 sends to the next block.
__device__ void send_on(Mail& mail, int half, int bytes) {
  if (threadIdx.x != 0) return;
  arrive_expecting(mail.barrier[half], bytes);
  const int next = (cluster_rank() + 1) % cluster_size();
  send(int64_t(1), mail.value[half][0], mail.barrier[half], next);
}

// One thread sends and waits for its block.
__global__ void mail_by_one(const int64_t*, int64_t* y) {
  Mail& mail = start_mail();
  for (int turn = 0; turn < 6; ++turn) {
    send_on(mail, turn % 2, 8);
    if (threadIdx.x == 0) wait(mail.barrier[turn % 2], turn / 2 % 2);
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] += mail.value[turn % 2][0];
    __syncthreads();
  }
}

// Over what was written in the ordinary way.
__global__ void mail_over_writes(const int64_t* x, int64_t* y) {
  Mail& mail = start_mail();
  if (threadIdx.x < 2) mail.value[threadIdx.x][0] = x[threadIdx.x];
  cluster_sync();
  send_on(mail, 1, 8);
  wait(mail.barrier[1], 0);
  y[blockIdx.x * blockDim.x + threadIdx.x] = mail.value[0][0] + mail.value[1][0];
}
"""
WRONG = r"""
__global__ void wrong_late_publication(const int64_t*, int64_t*) {
  Mail& mail = opforge::shared<Mail>();
  if (threadIdx.x == 0) init(mail.barrier[0], 1);
  cluster_arrive_relaxed();
  if (threadIdx.x == 0) publish_barriers();
  cluster_wait();
  if (threadIdx.x == 0) {
    arrive_expecting(mail.barrier[0], 8);
    send(int64_t(1), mail.value[0][0], mail.barrier[0], cluster_rank() ^ 1);
  }
  wait(mail.barrier[0], 0);
}

__global__ void wrong_mail_not_awaited(const int64_t*, int64_t* y) {
  Mail& mail = start_mail();
  if (threadIdx.x == 0) mail.value[0][0] = 7;
  cluster_sync();
  send_on(mail, 0, 8);
  cluster_sync();
  y[threadIdx.x] = mail.value[0][0];
  wait(mail.barrier[0], 0);
}

// Each block is told that the other got its value, not that its threads have read it.
__global__ void wrong_mail_overwritten(const int64_t*, int64_t* y) {
  Mail& mail = start_mail();
  for (int turn = 0; turn < 2; ++turn) {
    send_on(mail, 0, 8);
    wait(mail.barrier[0], turn);
    send_on(mail, 1, 8);
    wait(mail.barrier[1], turn);
    y[blockIdx.x * blockDim.x + threadIdx.x] += mail.value[0][0];
  }
}

// A warp sends while some of its lanes may still read.
__global__ void wrong_mail_of_some_lanes(const int64_t* x, int64_t* y) {
  Mail& mail = start_mail();
  for (int turn = 0; turn < 3; ++turn) {
    const int half = turn % 2;
    if (threadIdx.x == 0) arrive_expecting(mail.barrier[half], 32);
    if (threadIdx.x % 32 < 2) {
      send(x[0], mail.value[half][cluster_rank() * 2 + threadIdx.x / 32], mail.barrier[half],
           threadIdx.x % 32);
    }
    wait(mail.barrier[half], turn / 2 % 2);
    y[blockIdx.x * blockDim.x + threadIdx.x] += mail.value[half][threadIdx.x % 4];
  }
}

// What is sent is ordered, not what its thread wrote before.
__global__ void wrong_written_before_mail(const int64_t* x, int64_t* y) {
  Mail& mail = start_mail();
  if (threadIdx.x == 0) y[blockIdx.x] = x[0];
  send_on(mail, 0, 8);
  wait(mail.barrier[0], 0);
  if (threadIdx.x == 0) y[2 + blockIdx.x] = y[blockIdx.x ^ 1];
}

__global__ void wrong_mail_to_none(const int64_t*, int64_t*) {
  Mail& mail = start_mail();
  send(int64_t(1), mail.value[0][0], mail.barrier[0], cluster_size());
}

__global__ void wrong_mail_to_global_memory(const int64_t*, int64_t* y) {
  send(int64_t(1), y[0], start_mail().barrier[0], 0);
}

__global__ void wrong_mail_too_early(const int64_t*, int64_t*) {
  Mail& mail = opforge::shared<Mail>();
  if (threadIdx.x == 0) init(mail.barrier[0], 1), publish_barriers();
  __syncthreads();
  send_on(mail, 0, 8);
  cluster_sync();
  wait(mail.barrier[0], 0);
}

__global__ void wrong_mail_too_late(const int64_t*, int64_t*) {
  Mail& mail = start_mail();
  if (cluster_rank() == 0) return;
  __syncthreads();
  if (threadIdx.x == 0) send(int64_t(1), mail.value[0][0], mail.barrier[0], 0);
}

__global__ void wrong_mail_unread(const int64_t*, int64_t*) {
  Mail& mail = start_mail();
  send_on(mail, 0, 8);
}

__global__ void wrong_mail_too_long(const int64_t*, int64_t*) {
  Mail& mail = start_mail();
  send_on(mail, 0, 4);
  wait(mail.barrier[0], 0);
}

__global__ void wrong_mail_too_short(const int64_t*, int64_t*) {
  Mail& mail = start_mail();
  send_on(mail, 0, 16);
  wait(mail.barrier[0], 0);
}

__global__ void wrong_mail_unpublished(const int64_t*, int64_t*) {
  Mail& mail = opforge::shared<Mail>();
  if (threadIdx.x == 0) init(mail.barrier[0], 1);
  cluster_sync();
  send_on(mail, 0, 8);
  wait(mail.barrier[0], 0);
}
"""
KERNELS = RIGHT + WRONG + FINE
RACES = {
    "wrong_late_publication": r"race: .*uses the barrier in shared memory .* that thread "
    r"\(0,0,0\) of block \(\d,0,0\) wrote",
    "wrong_mail_not_awaited": r"race: thread .* reads shared memory .* that thread \(0,0,0\) of "
    r"block \(\d,0,0\) sent, without a wait\(\) for phase 0 of its barrier.* sent cuda",
    "wrong_mail_overwritten": r"race: .*(sends to shared memory .* that thread .* read, with noth|"
    r"reads shared memory .* sent, without .* phase 1 .*, or it was sent before it was read)",
    "wrong_mail_of_some_lanes": "race: .*(sends to shared memory .* that thread .* read, with|"
    "reads shared memory .* or it was sent before it was read)",
    "wrong_written_before_mail": "race: .*reads global memory .* wrote, with no cluster_sync",
}
ALWAYS = {  # also without --race
    "wrong_mail_to_none": "cluster: .*rank 2 in a cluster of 2 blocks",
    "wrong_mail_to_global_memory": "cluster: .* not in its own shared memory",
    "wrong_mail_too_early": "not-running: .* sends to block .* may not have started: no cluster",
    "wrong_mail_too_late": "not-running: .*which has exited",
    "wrong_mail_unread": r"(in-flight: block \(\d,0,0\) exits although nobody waited for what is "
    r"copied or sent .* phase 0|not-running: .*which has exited)",
    "wrong_mail_too_long": "barrier: 8 bytes are copied or sent for phase 0 .* 4 were announced",
    "wrong_mail_too_short": "deadlock: .* 8 of 16 announced bytes have come",
    "wrong_mail_unpublished": r"missing-fence: .* sends a value .*without publish_barriers\(\)",
}
NAMED = RACES | ALWAYS
assert set(NAMED) == set(re.findall(r"__global__ void (wrong_\w+)\(", KERNELS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("send"), "sim_send", KERNELS)


@pytest.fixture(scope="module", params=EACH_MACHINE)
def call(request: pytest.FixtureRequest, folder: Path) -> Call:
    return load_kernels(folder, request.param)


@pytest.fixture(scope="module")
def simulated(folder: Path) -> Call:
    return load_kernels(folder)


X = list(range(12))  # a value per warp of six blocks


@WAYS
@pytest.mark.parametrize("cluster", [1, 2, 3, 6])
def test_sums_over_a_cluster(call: Call, cluster: int, way: dict[str, Any]) -> None:
    y = call("mail_sum", X, grid=(6,), block=(64,), cluster=cluster, size=6 * 64, **way)
    wanted = []
    for block in range(6):
        first, count, total = 2 * (block // cluster * cluster), 2 * cluster, 0
        for turn in range(7):
            total = 3 * total + sum(X[first : first + count]) + count * turn
        wanted += [total] * 64
    assert y == wanted


@WAYS
def test_one_thread_waits_for_its_block(call: Call, way: dict[str, Any]) -> None:
    y = call("mail_by_one", grid=(4,), block=(64,), cluster=2, size=256, **way)
    assert y == [6] * 256


@WAYS
def test_what_was_written_is_overwritten(call: Call, way: dict[str, Any]) -> None:
    y = call("mail_over_writes", [5, 6], grid=(3,), block=(64,), cluster=3, size=192, **way)
    assert y == [5 + 1] * 192


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("kernel", NAMED)
def test_wrong_kernels_are_named(simulated: Call, kernel: str, seed: int | None) -> None:
    shape = {"grid": (2,), "cluster": 2, "block": (64,), "size": 128}
    for mode in ["race"] if kernel in RACES else ["race", "plain"]:
        with pytest.raises(SimulationError, match=f"(?s){NAMED[kernel]}"):
            simulated(kernel, list(range(64)), mode=mode, seed=seed, **shape)
        works(simulated, mode=mode)


def test_what_is_read_too_early_is_poison(simulated: Call) -> None:
    shape = {"grid": (2,), "cluster": 2, "block": (64,), "size": 64}
    assert simulated("wrong_mail_not_awaited", **shape) == [-1] * 64
