/* Two processes store into each other's memory through a window of NCCL's (LSA), and through a plain
 * mapping of the driver's beside it: whether all arrives, and what both take. Prints a line for each
 * kind and rank; ends with another code than 0 if anything fails.
 */
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

constexpr size_t BYTES = 256u << 20, FLAGS = 4096;
constexpr int TURNS = 1000, ROUNDS = 8, CTAS = 528, THREADS = 512;

static int rank;

static void check(bool ok, const char *what, const char *why)
{
    if (ok)
        return;
    printf("rank %d: %s: %s\n", rank, what, why);
    fflush(stdout);
    _exit(2);
}

#define CUDA(x)                                                                                    \
    do {                                                                                           \
        cudaError_t result = (x);                                                                   \
        check(result == cudaSuccess, #x, cudaGetErrorString(result));                                \
    } while (0)
#define NCCL(x)                                                                                    \
    do {                                                                                           \
        ncclResult_t result = (x);                                                                  \
        check(result == ncclSuccess, #x, ncclGetErrorString(result));                                \
    } while (0)

struct Shared {
    ncclUniqueId id;
    cudaIpcMemHandle_t handles[2];
    volatile int steps[2];
};

/* Both hosts come to a step. */
static void meet(Shared *shared)
{
    __sync_fetch_and_add(&shared->steps[rank], 1);
    while (shared->steps[1 - rank] < shared->steps[rank])
        usleep(50);
}

__global__ void look_up(ncclWindow_t window, int peer, char **found)
{
    found[0] = (char *)ncclGetLocalPointer(window, 0);
    found[1] = (char *)ncclGetLsaPointer(window, 0, peer);
}

__global__ void fill(int *to, size_t count, int value)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        to[i] = value + (int)i;
}

__global__ void copy(const int4 *from, int4 *to, size_t count)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        to[i] = from[i];
}

__global__ void compare(const int *at, size_t count, int value, unsigned long long *wrong)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        if (at[i] != value + (int)i)
            atomicAdd(wrong, 1ull);
}

/* A flag goes to the peer and back. */
__global__ void return_flags(volatile int *mine, volatile int *theirs, bool begins)
{
    for (int turn = 1; turn <= TURNS; turn++) {
        if (begins)
            *theirs = turn;
        while (*mine != turn)
            ;
        if (!begins)
            *theirs = turn;
    }
}

static float milliseconds(cudaEvent_t begun, cudaEvent_t ended)
{
    float found;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventElapsedTime(&found, begun, ended));
    return found;
}

/* Memory of this rank's, and the peer's as it is mapped here. */
static void measure(const char *kind, char *local, char *there, Shared *shared)
{
    int *source;
    unsigned long long *wrong;
    cudaEvent_t begun, ended;
    CUDA(cudaMalloc(&source, BYTES));
    CUDA(cudaMallocManaged(&wrong, sizeof *wrong));
    CUDA(cudaEventCreate(&begun));
    CUDA(cudaEventCreate(&ended));
    CUDA(cudaMemset(local, 0, BYTES + FLAGS));
    fill<<<CTAS, THREADS>>>(source, BYTES / 4, 7 * rank);
    CUDA(cudaDeviceSynchronize());
    float best = 1e9f, flags = 1e9f;
    for (int round = 0; round < ROUNDS; round++) {
        meet(shared);
        CUDA(cudaEventRecord(begun));
        copy<<<CTAS, THREADS>>>((int4 *)source, (int4 *)there, BYTES / 16);
        CUDA(cudaEventRecord(ended));
        float found = milliseconds(begun, ended);
        best = found < best ? found : best;
    }
    meet(shared);
    *wrong = 0;
    compare<<<CTAS, THREADS>>>((int *)local, BYTES / 4, 7 * (1 - rank), wrong);
    CUDA(cudaDeviceSynchronize());
    for (int round = 0; round < ROUNDS; round++) {
        CUDA(cudaMemset(local + BYTES, 0, FLAGS));
        CUDA(cudaDeviceSynchronize());
        meet(shared);
        CUDA(cudaEventRecord(begun));
        return_flags<<<1, 1>>>((int *)(local + BYTES), (int *)(there + BYTES), rank == 0);
        CUDA(cudaEventRecord(ended));
        float found = milliseconds(begun, ended);
        flags = found < flags ? found : flags;
        meet(shared);
    }
    printf("rank %d: %s: %.1f GB/s, %.2f us for a flag there and back, %llu words wrong\n", rank,
           kind, BYTES / best / 1e6, flags, *wrong);
    fflush(stdout);
    check(*wrong == 0, kind, "words are wrong");
}

int main()
{
    Shared *shared = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    rank = child == 0;
    CUDA(cudaSetDevice(rank));
    if (rank == 0)
        NCCL(ncclGetUniqueId(&shared->id));
    meet(shared);
    ncclComm_t comm;
    NCCL(ncclCommInitRank(&comm, 2, shared->id, rank));

    char *memory, **found;
    ncclWindow_t window = nullptr;
    NCCL(ncclMemAlloc((void **)&memory, BYTES + FLAGS));
    NCCL(ncclCommWindowRegister(comm, memory, BYTES + FLAGS, &window, NCCL_WIN_COLL_SYMMETRIC));
    check(window != nullptr, "ncclCommWindowRegister", "no symmetric memory");
    CUDA(cudaMallocManaged(&found, 2 * sizeof *found));
    look_up<<<1, 1>>>(window, 1 - rank, found);
    CUDA(cudaDeviceSynchronize());
    measure("a window of NCCL's", found[0], found[1], shared);

    char *plain, *theirs;
    CUDA(cudaMalloc(&plain, BYTES + FLAGS));
    CUDA(cudaIpcGetMemHandle(&shared->handles[rank], plain));
    meet(shared);
    CUDA(cudaIpcOpenMemHandle((void **)&theirs, shared->handles[1 - rank],
                              cudaIpcMemLazyEnablePeerAccess));
    measure("a plain mapping", plain, theirs, shared);

    meet(shared);
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL(ncclMemFree(memory));
    NCCL(ncclCommDestroy(comm));
    int status = 0;
    if (child != 0)
        waitpid(child, &status, 0);
    return status != 0;
}
