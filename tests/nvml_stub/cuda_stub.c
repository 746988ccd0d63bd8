/* cuda_stub.c - as much of libcuda.so.1 as it takes to hold memory of the GPUs that nvml_stub.c pretends to have.
 *
 * It finds them through libnvidia-ml.so.1, obeys CUDA_VISIBLE_DEVICES (indices, UUIDs and their beginnings, MIG UUIDs)
 * and writes what a process has allocated into the procs_dir of the state file, so that NVML tells of it until it ends.
 * Build:  cc -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 cuda_stub.c -ldl
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, LOST = 999 };
#define MAX 64
#define MIB (1024ULL * 1024ULL)
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { int gpu, mig; char uuid[96]; unsigned long long mib; } device_t;

static device_t visible[MAX];
static int count, started;
static __thread int current = -1;
static void *nvml;

#define CALL(name, ...) ({ int (*f_)() = (int (*)())dlsym(nvml, name); f_ ? f_(__VA_ARGS__) : 13; })

static void add(int gpu, int mig, void *handle) {
    if (count >= MAX) return;
    device_t *d = &visible[count];
    if (CALL("nvmlDeviceGetUUID", handle, d->uuid, 96u) != 0) return;
    d->gpu = gpu; d->mig = mig; d->mib = 0; count++;
}

/* The devices that one word of CUDA_VISIBLE_DEVICES means (NULL: every GPU); an instance is visible by its name, or first of its GPU. */
static void find(const char *word) {
    unsigned n = 0, mode, pending; void *gpu, *mig;
    if (CALL("nvmlDeviceGetCount_v2", &n) != 0) return;
    int before = count;
    for (unsigned i = 0; i < n; i++) {
        char uuid[96] = "";
        if (CALL("nvmlDeviceGetHandleByIndex_v2", i, &gpu) != 0 || CALL("nvmlDeviceGetUUID", gpu, uuid, 96u) != 0) continue;
        int cut = CALL("nvmlDeviceGetMigMode", gpu, &mode, &pending) == 0 && mode;
        int meant = !word || (isdigit((unsigned char)*word) ? (unsigned)atoi(word) == i : !strncasecmp(uuid, word, strlen(word)));
        if (meant && !cut) add((int)i, -1, gpu);
        for (unsigned m = 0; cut && m < 8; m++) {
            if (CALL("nvmlDeviceGetMigDeviceHandleByIndex", gpu, m, &mig) != 0 || CALL("nvmlDeviceGetUUID", mig, uuid, 96u) != 0) continue;
            if ((meant && count == before) || (word && !strncasecmp(uuid, word, strlen(word)))) add((int)i, (int)m, mig);
        }
    }
}

int cuInit(unsigned flags) {
    if (flags) return INVALID;
    if (started) return count ? OK : NO_DEVICE;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml || CALL("nvmlInit_v2") != 0) return NO_DEVICE;
    started = 1;
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    if (!given) { find(NULL); return count ? OK : NO_DEVICE; }
    char words[4096], *rest = words, *word;
    snprintf(words, sizeof words, "%s", given);
    while ((word = strsep(&rest, ","))) {
        while (isspace((unsigned char)*word)) word++;
        int before = count;
        if (*word && *word != '-') find(word);
        if (count != before + 1) { count = before; break; }      /* what is unclear ends the list, as it does in CUDA */
    }
    return count ? OK : NO_DEVICE;
}

int cuDeviceGetCount(int *n) { if (!started) return NOT_INITIALIZED; *n = count; return OK; }
int cuDeviceGet(int *d, int ordinal) { if (ordinal < 0 || ordinal >= count) return INVALID_DEVICE; *d = ordinal; return OK; }
int cuDeviceGetUuid_v2(unsigned char out[16], int d) {
    if (d < 0 || d >= count) return INVALID_DEVICE;
    const char *c = strchr(visible[d].uuid, '-'); int k = 0;
    for (memset(out, 0, 16); c && *c && k < 32; c++)
        if (isxdigit((unsigned char)*c)) { int v = isdigit((unsigned char)*c) ? *c - '0' : tolower(*c) - 'a' + 10; out[k / 2] |= (unsigned char)(k % 2 ? v : v << 4); k++; }
    return OK;
}
int cuDeviceGetUuid(unsigned char out[16], int d) { return cuDeviceGetUuid_v2(out, d); }
int cuCtxCreate_v2(void **context, unsigned flags, int d) { (void)flags; if (d < 0 || d >= count) return INVALID_DEVICE; current = d; *context = &visible[d]; return OK; }
int cuCtxDestroy_v2(void *context) { (void)context; current = -1; return OK; }

static int memory(memory_v1 *m) {
    void *handle;
    if (current < 0) return INVALID_CONTEXT;
    if (CALL("nvmlDeviceGetHandleByUUID", visible[current].uuid, &handle) != 0) return LOST;
    return CALL("nvmlDeviceGetMemoryInfo", handle, m) == 0 ? OK : LOST;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { memory_v1 m; int rc = memory(&m); if (rc == OK) { *free_bytes = m.free; *total = m.total; } return rc; }

static int tell(const device_t *d) {
    char line[1024], dir[900] = "", name[1200], fresh[1300];
    FILE *f = fopen(getenv("NVML_STUB_STATE") ? getenv("NVML_STUB_STATE") : "", "r");
    while (f && fgets(line, sizeof line, f)) if (sscanf(line, "system procs_dir %899[^\n]", dir) == 1) break;
    if (f) fclose(f);
    if (!dir[0]) return LOST;
    if (d->mig < 0) snprintf(name, sizeof name, "%s/%d.%d", dir, d->gpu, (int)getpid()); else snprintf(name, sizeof name, "%s/%d_%d.%d", dir, d->gpu, d->mig, (int)getpid());
    snprintf(fresh, sizeof fresh, "%s/.cuda.%d", dir, (int)getpid());
    if (!(f = fopen(fresh, "w"))) return LOST;
    fprintf(f, "%llu", d->mib); fclose(f);
    return rename(fresh, name) == 0 ? OK : LOST;
}
int cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
    memory_v1 m; int rc = memory(&m);
    if (rc != OK) return rc;
    if (bytes > m.free) return NO_MEMORY;
    device_t *d = &visible[current]; d->mib += (bytes + MIB - 1) / MIB;
    *at = 0x7f0000000000ULL + d->mib; return tell(d);
}
int cuGetErrorString(int code, const char **text) {
    *text = code == OK ? "no error" : code == NO_MEMORY ? "out of memory" : code == NO_DEVICE ? "no CUDA-capable device is detected" : "an error of the stub"; return OK;
}
