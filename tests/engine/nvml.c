/* A driver's libraries, as far as NVLink domains go: NVML, and memory with handles. Types are as
   `nvml.h` and `cuda.h` have them; what is answered is in the environment. */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 6, MISMATCH = 25 };

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

static int number(const char *name) { return atoi(getenv(name) ? getenv(name) : "0"); }

static int opened, memory;
int num_open(void) { return opened + memory; }

int nvmlInit_v2(void) { opened += !number("INIT"); return number("INIT"); }
int nvmlShutdown(void) { opened--; return SUCCESS; }
const char *nvmlErrorString(int status) { return status == NOT_FOUND ? "Not Found" : "Not Supported"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &opened;
    return opened && !strcmp(uuid, getenv("UUID")) ? SUCCESS : NOT_FOUND;
}

#ifndef OLD
int nvmlDeviceGetGpuFabricInfoV(void *device, nvmlGpuFabricInfo_v3_t *answer) {
    const unsigned int known[] = {sizeof(nvmlGpuFabricInfo_v2_t) | 2u << 24, sizeof(*answer) | 3u << 24};
    const int newest = number("NEWEST");
    if (answer->version != known[1] && answer->version != known[0]) return MISMATCH;
    if (answer->version >> 24 > (unsigned)newest || device != &opened) return MISMATCH;
    if (number("FABRIC")) return number("FABRIC");
    for (int byte = 0; byte < 16; byte++) answer->clusterUuid[byte] = number("CLUSTER") * (byte + 1);
    answer->status = number("STATUS");
    answer->cliqueId = number("CLIQUE");
    answer->state = number("STATE");
    answer->healthMask = 0x1234;
    if (answer->version >> 24 == 3) answer->healthSummary = 1;
    return SUCCESS;
}
#endif

/* Of the driver. */
typedef struct {
    int type, requestedHandleTypes;
    struct { int type, id; } location;
    void *win32HandleMetaData;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} CUmemAllocationProp;

static int is_good(const CUmemAllocationProp *it) {
    const int named = it->type == 1 && it->requestedHandleTypes == 8 && it->location.type == 1;
    return named && it->location.id == number("DEVICE") && !it->win32HandleMetaData && !it->flags.usage;
}

int cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *it, unsigned int option) {
    *size = 1 << 21;
    return is_good(it) && option == 0 ? number("GRANULARITY") : 1;
}
int cuMemCreate(unsigned long long *handle, size_t size, const CUmemAllocationProp *it, unsigned long long flags) {
    if (number("CREATE") || size != 1 << 21 || flags || !is_good(it)) return 800;
    memory++;
    *handle = 0x123456789abcull;
    return SUCCESS;
}
int cuMemExportToShareableHandle(void *shared, unsigned long long handle, int kind, unsigned long long flags) {
    if (number("EXPORT") || handle != 0x123456789abcull || kind != 8 || flags) return 800;
    memset(shared, 0x5a, 64);
    return SUCCESS;
}
int cuMemImportFromShareableHandle(unsigned long long *handle, void *shared, int kind) {
    if (number("IMPORT") || kind != 8 || ((unsigned char *)shared)[63] != 0x5a) return 800;
    memory++;
    *handle = 0x123456789abcull;
    return SUCCESS;
}
int cuMemRelease(unsigned long long handle) {
    memory--;
    return handle == 0x123456789abcull ? SUCCESS : 1;
}
