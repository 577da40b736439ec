// libcuda.so for tests: the part of the driver API that cudarc calls. Names, arguments and results are those of cuda.h 12.0.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "launch.h"
#include "machine.h"
#include "modules.h"
#include "results.h"
#include "shadow.h"
#include "streams.h"

using namespace emulator;

struct Function {
    std::string name;
    Entry entry;
    // Null where the source runs.
    Program program;
    unsigned most_shared = 48 << 10;
};
struct Loaded {
    Module module;
    std::vector<std::unique_ptr<Function>> functions;
};

static bool is_initialised = false;
static int n_retained = 0;
static int primary_context;
// Page-locked host memory by its address.
static std::map<const unsigned char*, size_t> pinned;

static bool is_pinned(const void* at, size_t n_bytes) {
    auto* p = (const unsigned char*)at;
    auto behind = pinned.upper_bound(p);
    if (behind == pinned.begin()) return false;
    auto& [begin, n] = *std::prev(behind);
    return p + n_bytes <= begin + n;
}
static bool is_any(const void*, size_t) { return true; }

static int error_now() { return machine().error ? machine().error : caller()->error; }

// How a call begins: alone, and only while the context is well.
#define ENTER                                              \
    std::lock_guard<std::mutex> guard(machine().mutex);    \
    if (!is_initialised) return NOT_INITIALIZED;           \
    if (int error = error_now()) return error;
#define ENTER_CONTEXT \
    ENTER             \
    if (!caller()->context) return INVALID_CONTEXT;
#define FIND_STREAM(handle)                  \
    auto stream = streams().find(handle);    \
    if (!stream) return INVALID_HANDLE;
#define NOT_IN_CAPTURE \
    if (Result result = streams().forbidden_in_capture()) return result;

// Calls that wait: the work that they wait for may fail.
static int drained() {
    streams().drain_all();
    return error_now();
}

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    if (int error = caller()->fail_init ? caller()->fail_init : (int)machine().fail_init) return error;
    is_initialised = true;
    return error_now();
}
int cuDriverGetVersion(int* version) {
    *version = 12000;
    return SUCCESS;
}
int cuGetErrorName(int result, const char** name) { return (*name = name_of(result)) ? SUCCESS : INVALID_VALUE; }
int cuGetErrorString(int result, const char** words) { return (*words = words_of(result)) ? SUCCESS : INVALID_VALUE; }

// Devices.
int cuDeviceGetCount(int* n) {
    ENTER
    *n = 1;
    return SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) {
    ENTER
    if (ordinal != 0) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}
int cuDeviceGetName(char* name, int room, int) {
    ENTER
    snprintf(name, room, "Diffulex emulator");
    return SUCCESS;
}
int cuDeviceGetUuid(char* uuid, int) {
    ENTER
    memcpy(uuid, "diffulex-emulate", 16);
    return SUCCESS;
}
int cuDeviceGetUuid_v2(char* uuid, int device) { return cuDeviceGetUuid(uuid, device); }
int cuDeviceTotalMem_v2(size_t* n_bytes, int) {
    ENTER
    *n_bytes = machine().memory.total();
    return SUCCESS;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER
    switch (attribute) {
        case 1: *value = 1024; break;              // Threads of a block,
        case 2: case 3: *value = 1024; break;      // by x and y,
        case 4: *value = 64; break;                // and by z.
        case 5: *value = 2147483647; break;        // Blocks of a grid by x,
        case 6: case 7: *value = 65535; break;     // and by y and z.
        case 8: *value = 48 << 10; break;          // Shared memory of a block that asks for nothing,
        case 97: *value = (int)MAX_SHARED; break;  // and the most that one may ask for.
        case 10: *value = 32; break;               // Threads of a warp.
        case 12: *value = 65536; break;            // Registers of a block.
        case 16: *value = 2; break;                // Multiprocessors.
        case 39: *value = 1536; break;             // Their threads.
        // Compute capability 8.9: of those that we support it has the least shared memory.
        case 75: *value = 8; break;
        case 76: *value = 9; break;
        case 41: *value = 1; break;                // Unified addressing.
        case 115: *value = 1; break;               // Memory pools.
        default: *value = 0;
    }
    return SUCCESS;
}

// Contexts: there is one, the primary.
int cuDevicePrimaryCtxRetain(void** context, int device) {
    ENTER
    if (device != 0) return INVALID_DEVICE;
    n_retained++;
    *context = &primary_context;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    ENTER
    if (!n_retained) return INVALID_CONTEXT;
    n_retained--;
    return SUCCESS;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) {
    ENTER
    *flags = 0;
    *is_active = n_retained > 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) {
    ENTER
    return SUCCESS;
}
int cuCtxSetCurrent(void* context) {
    ENTER
    if (context && (context != &primary_context || !n_retained)) return INVALID_CONTEXT;
    caller()->context = context;
    return SUCCESS;
}
int cuCtxGetCurrent(void** context) {
    ENTER
    *context = caller()->context;
    return SUCCESS;
}
int cuCtxGetDevice(int* device) {
    ENTER_CONTEXT
    *device = 0;
    return SUCCESS;
}
int cuCtxSetFlags(unsigned) {
    ENTER_CONTEXT
    return SUCCESS;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    ENTER_CONTEXT
    *least = *greatest = 0;
    return SUCCESS;
}
int cuCtxSynchronize() {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    return drained();
}
int cuCtxSynchronize_v2(void*) { return cuCtxSynchronize(); }

// Memory.
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    ENTER_CONTEXT
    *free = machine().memory.free();
    *total = machine().memory.total();
    return SUCCESS;
}
// Whether a fault of the thread or of the process is due; both are counted down.
static bool is_planted(uint64_t& of_thread, uint64_t& of_process) {
    bool is_due = of_thread && !--of_thread, is_due_for_all = of_process && !--of_process;
    return is_due || is_due_for_all;
}
static int allocate(uint64_t* p, size_t n_bytes) {
    if (!n_bytes) return INVALID_VALUE;
    auto& own = *caller();
    if (is_planted(own.fail_alloc, machine().fail_alloc)) return OUT_OF_MEMORY;
    *p = (uint64_t)machine().memory.allocate(n_bytes);
    if (!*p) return OUT_OF_MEMORY;
    own.counters.allocations++;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t* p, size_t n_bytes) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    return allocate(p, n_bytes);
}
int cuMemFree_v2(uint64_t p) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    if (!p) return SUCCESS;
    // The driver waits for the device before it frees.
    if (int error = drained()) return error;
    return machine().memory.release((unsigned char*)p) ? SUCCESS : INVALID_VALUE;
}
int cuMemAllocAsync(uint64_t* p, size_t n_bytes, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (stream->capture) return NOT_SUPPORTED;
    return allocate(p, n_bytes);
}
int cuMemFreeAsync(uint64_t p, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (stream->capture) return NOT_SUPPORTED;
    return streams().append(stream, {Node::Mark, "", [p](Caller&, bool) { return machine().memory.release((unsigned char*)p) ? SUCCESS : INVALID_VALUE; }});
}
int cuMemHostAlloc(void** p, size_t n_bytes, unsigned) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    if (!n_bytes) return INVALID_VALUE;
    *p = aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
    if (!*p) return OUT_OF_MEMORY;
    pinned[(unsigned char*)*p] = n_bytes;
    return SUCCESS;
}
int cuMemFreeHost(void* p) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    if (!pinned.count((unsigned char*)p)) return INVALID_VALUE;
    int error = drained();
    pinned.erase((unsigned char*)p);
    ::free(p);
    return error;
}
int cuMemHostRegister_v2(void* p, size_t n_bytes, unsigned) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    if (!p || !n_bytes) return INVALID_VALUE;
    pinned[(unsigned char*)p] = n_bytes;
    return SUCCESS;
}
int cuMemHostUnregister(void* p) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    int error = drained();
    return pinned.erase((unsigned char*)p) ? error : INVALID_VALUE;
}

// Copies. A copy from ordinary host memory has read it when the call returns, and one to it has written it; page-locked memory is
// touched when the stream comes to it. A graph's copies touch the memory whenever the graph runs.
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t n_bytes, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (!n_bytes) return SUCCESS;
    if (!machine().memory.holds((void*)to, n_bytes) || !from) return INVALID_VALUE;
    if (is_pinned(from, n_bytes)) return streams().append(stream, upload_node((unsigned char*)to, from, n_bytes, is_pinned));
    if (stream->capture) return streams().append(stream, upload_node((unsigned char*)to, from, n_bytes, is_any));
    auto bytes = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + n_bytes);
    return streams().append(stream, upload_node((unsigned char*)to, bytes->data(), n_bytes, [bytes](const void*, size_t) { return true; }));
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t n_bytes, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (!n_bytes) return SUCCESS;
    if (!machine().memory.holds((void*)from, n_bytes) || !to) return INVALID_VALUE;
    bool stays = is_pinned(to, n_bytes);
    Result result = streams().append(stream, download_node(to, (unsigned char*)from, n_bytes, stays ? is_pinned : is_any));
    if (result || stays || stream->capture) return result;
    streams().drain(*stream);
    return error_now();
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n_bytes, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (!n_bytes) return SUCCESS;
    if (!machine().memory.holds((void*)to, n_bytes) || !machine().memory.holds((void*)from, n_bytes)) return INVALID_VALUE;
    return streams().append(stream, copy_node((unsigned char*)to, (unsigned char*)from, n_bytes));
}
// The default stream's copies, which wait. Streams that do not block do not wait for them, nor they for those.
static int wait_for_default() {
    streams().drain(*streams().find(nullptr));
    return error_now();
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t n_bytes) {
    int result = cuMemcpyHtoDAsync_v2(to, from, n_bytes, nullptr);
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    return result ? result : wait_for_default();
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t n_bytes) {
    int result = cuMemcpyDtoHAsync_v2(to, from, n_bytes, nullptr);
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    return result ? result : wait_for_default();
}
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t n_bytes) { return cuMemcpyDtoDAsync_v2(to, from, n_bytes, nullptr); }

static int set(uint64_t p, unsigned value, size_t n_bytes, size_t width, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (!n_bytes) return SUCCESS;
    if (p % width || !machine().memory.holds((void*)p, n_bytes)) return INVALID_VALUE;
    return streams().append(stream, set_node((unsigned char*)p, value, n_bytes, width));
}
int cuMemsetD8Async(uint64_t p, unsigned char value, size_t n, void* stream) { return set(p, value, n, 1, stream); }
int cuMemsetD16Async(uint64_t p, unsigned short value, size_t n, void* stream) { return set(p, value, n * 2, 2, stream); }
int cuMemsetD32Async(uint64_t p, unsigned value, size_t n, void* stream) { return set(p, value, n * 4, 4, stream); }
int cuMemsetD8_v2(uint64_t p, unsigned char value, size_t n) { return set(p, value, n, 1, nullptr); }
int cuMemsetD32_v2(uint64_t p, unsigned value, size_t n) { return set(p, value, n * 4, 4, nullptr); }

// Modules.
int cuModuleLoadData(void** module, const void* text) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    if (!text) return INVALID_VALUE;
    auto loaded = std::make_unique<Loaded>();
    loaded->module = caller()->runs_ptx ? decode_ptx((const char*)text) : read_ptx((const char*)text);
    if (!loaded->module.what_is_wrong.empty()) {
        caller()->failure = loaded->module.what_is_wrong;
        if (!caller()->is_quiet) fprintf(stderr, "emulator: PTX: %s\n", caller()->failure.c_str());
    }
    if (loaded->module.error) return loaded->module.error;
    *module = loaded.release();
    return SUCCESS;
}
int cuModuleLoadDataEx(void** module, const void* text, unsigned, int*, void**) { return cuModuleLoadData(module, text); }
int cuModuleUnload(void* module) {
    ENTER_CONTEXT
    delete (Loaded*)module;
    return SUCCESS;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    ENTER_CONTEXT
    auto* loaded = (Loaded*)module;
    auto entry = loaded->module.entries.find(name);
    if (entry == loaded->module.entries.end()) return NOT_FOUND;
    Program program;
    if (loaded->module.runs_ptx) {
        program = loaded->module.programs.at(name);
    } else if (const std::vector<int>* arguments = kernel_arguments(name); !arguments || *arguments != entry->second.arguments) {
        fprintf(stderr, "emulator: kernel %s %s\n", name, arguments ? "has other arguments than its PTX: run scripts/ptx" : "is not registered with EMU_KERNEL");
        return NOT_FOUND;
    }
    loaded->functions.push_back(std::make_unique<Function>(Function{name, entry->second, program}));
    *function = loaded->functions.back().get();
    return SUCCESS;
}
int cuModuleGetGlobal_v2(uint64_t*, size_t*, void*, const char*) { return NOT_FOUND; }
int cuFuncSetAttribute(void* function, int attribute, int value) {
    ENTER_CONTEXT
    // The most dynamic shared memory that its launches may ask for.
    if (attribute == 8) {
        if (value < 0 || (size_t)value > MAX_SHARED) return INVALID_VALUE;
        ((Function*)function)->most_shared = value;
    }
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    ENTER_CONTEXT
    unsigned threads = ((Function*)function)->entry.most_threads;
    *value = attribute == 0 ? (int)(threads ? threads : 1024) : attribute == 8 ? (int)((Function*)function)->most_shared : 0;
    return SUCCESS;
}
int cuFuncSetCacheConfig(void*, int) {
    ENTER_CONTEXT
    return SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void*, int threads, size_t) {
    ENTER_CONTEXT
    *n = threads > 0 ? 1536 / threads : 0;
    return SUCCESS;
}

int cuLaunchKernel(void* f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void* handle, void** arguments, void**) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    auto& function = *(Function*)f;
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    bool is_valid = grid_x && grid_y && grid_z && grid_x <= 2147483647u && grid_y <= 65535 && grid_z <= 65535 && threads && threads <= 1024 && block_z <= 64 && shared <= function.most_shared;
    if (!is_valid) return INVALID_VALUE;
    if (function.entry.most_threads && threads > function.entry.most_threads) return LAUNCH_OUT_OF_RESOURCES;
    return streams().append(stream, kernel_node(function.name, function.program, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, function.entry.arguments, arguments));
}
int cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    return streams().append(stream, {Node::Set, "", [=](Caller&, bool) {
                                         function(data);
                                         return SUCCESS;
                                     }});
}

// Streams.
int cuStreamCreate(void** stream, unsigned flags) {
    ENTER_CONTEXT
    *stream = streams().create(!(flags & 1)).get();
    return SUCCESS;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
int cuStreamDestroy_v2(void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if ((uintptr_t)handle <= 2) return INVALID_HANDLE;
    streams().destroy(stream.get());
    return error_now();
}
int cuStreamSynchronize(void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    if (stream->capture) {
        stream->is_spoilt = true;
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    NOT_IN_CAPTURE
    streams().drain(*stream);
    return error_now();
}
int cuStreamQuery(void* handle) { return cuStreamSynchronize(handle); }
static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
int cuEventCreate(void** event, unsigned) {
    ENTER_CONTEXT
    *event = new std::shared_ptr<Event>(new Event);
    return SUCCESS;
}
static std::shared_ptr<Event>& event_of(void* handle) { return *(std::shared_ptr<Event>*)handle; }
int cuEventRecord(void* handle, void* stream_handle) {
    ENTER_CONTEXT
    FIND_STREAM(stream_handle)
    auto event = event_of(handle);
    Result result = streams().append(stream, {Node::Mark, "", [event](Caller&, bool) {
                                                  event->seconds = seconds();
                                                  return SUCCESS;
                                              }});
    event->stream = stream;
    event->ticket = stream->n_enqueued;
    event->of_capture = stream->capture != nullptr;
    return result;
}
int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    auto event = event_of(event_handle);
    if (!event->stream || event->stream == stream) return SUCCESS;
    // Captures of several streams are not modelled.
    if (stream->capture || event->of_capture) {
        stream->is_spoilt = true;
        return STREAM_CAPTURE_ISOLATION;
    }
    auto other = event->stream;
    uint64_t ticket = event->ticket;
    return streams().append(stream, {Node::Mark, "", [=](Caller&, bool) {
                                         streams().drain(*other, ticket);
                                         return SUCCESS;
                                     }});
}
int cuEventSynchronize(void* handle) {
    ENTER_CONTEXT
    NOT_IN_CAPTURE
    auto event = event_of(handle);
    if (event->stream) streams().drain(*event->stream, event->ticket);
    return error_now();
}
int cuEventQuery(void* handle) { return cuEventSynchronize(handle); }
int cuEventDestroy_v2(void* handle) {
    ENTER_CONTEXT
    delete (std::shared_ptr<Event>*)handle;
    return SUCCESS;
}
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    ENTER_CONTEXT
    if (!event_of(from)->seconds || !event_of(to)->seconds) return NOT_READY;
    *milliseconds = (float)(1e3 * (event_of(to)->seconds - event_of(from)->seconds));
    return SUCCESS;
}
int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) { return cuEventElapsedTime(milliseconds, from, to); }

// Graphs.
int cuStreamBeginCapture_v2(void* handle, int mode) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    // The default stream cannot be captured.
    if (stream->capture || (uintptr_t)handle <= 2) return STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = std::make_unique<Graph>();
    stream->mode = (CaptureMode)mode;
    stream->capturer = caller().get();
    stream->is_spoilt = false;
    return SUCCESS;
}
int cuStreamEndCapture(void* handle, void** graph) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    *graph = nullptr;
    if (!stream->capture) return STREAM_CAPTURE_UNMATCHED;
    auto captured = std::move(stream->capture);
    if (stream->is_spoilt) return STREAM_CAPTURE_INVALIDATED;
    *graph = captured.release();
    return SUCCESS;
}
int cuStreamIsCapturing(void* handle, int* status) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    *status = !stream->capture ? 0 : stream->is_spoilt ? 2 : 1;
    return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int*) { return NOT_SUPPORTED; }
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    ENTER_CONTEXT
    if (is_planted(caller()->fail_instantiate, machine().fail_instantiate)) return OUT_OF_MEMORY;
    *executable = new Graph(*(Graph*)graph);
    return SUCCESS;
}
int cuGraphExecUpdate_v2(void* executable, void* graph, int* result) {
    ENTER_CONTEXT
    auto &before = ((Graph*)executable)->nodes, &after = ((Graph*)graph)->nodes;
    bool is_same = before.size() == after.size() && std::equal(before.begin(), before.end(), after.begin(), [](const Node& a, const Node& b) { return a.kind == b.kind && a.kernel == b.kernel; });
    // The first number of the structure is a CUgraphExecUpdateResult: 0 is success, 1 an error.
    if (result) *result = !is_same;
    if (!is_same) return GRAPH_EXEC_UPDATE_FAILURE;
    before = after;
    return SUCCESS;
}
int cuGraphGetNodes(void* graph, void** nodes, size_t* n) {
    ENTER_CONTEXT
    if (nodes) return NOT_SUPPORTED;
    *n = ((Graph*)graph)->nodes.size();
    return SUCCESS;
}
int cuGraphUpload(void*, void*) {
    ENTER_CONTEXT
    return SUCCESS;
}
int cuGraphLaunch(void* executable, void* handle) {
    ENTER_CONTEXT
    FIND_STREAM(handle)
    return streams().launch(stream, *(Graph*)executable);
}
int cuGraphExecDestroy(void* executable) {
    ENTER_CONTEXT
    delete (Graph*)executable;
    return SUCCESS;
}
int cuGraphDestroy(void* graph) {
    ENTER_CONTEXT
    delete (Graph*)graph;
    return SUCCESS;
}

// Of the rest cudarc has safe wrappers, for which nobody has a use here.
#define UNSUPPORTED(name) \
    int name() { return NOT_SUPPORTED; }
UNSUPPORTED(cuCtxCreate_v3)
UNSUPPORTED(cuCtxDestroy_v2)
UNSUPPORTED(cuCtxGetCacheConfig)
UNSUPPORTED(cuCtxGetLimit)
UNSUPPORTED(cuCtxSetCacheConfig)
UNSUPPORTED(cuCtxSetLimit)
UNSUPPORTED(cuDestroyExternalMemory)
UNSUPPORTED(cuDeviceGetDefaultMemPool)
UNSUPPORTED(cuDeviceGetMemPool)
UNSUPPORTED(cuDeviceSetMemPool)
UNSUPPORTED(cuExternalMemoryGetMappedBuffer)
UNSUPPORTED(cuImportExternalMemory)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuMemAdvise_v2)
UNSUPPORTED(cuMemAllocFromPoolAsync)
UNSUPPORTED(cuMemAllocManaged)
UNSUPPORTED(cuMemPoolCreate)
UNSUPPORTED(cuMemPoolDestroy)
UNSUPPORTED(cuMemPoolGetAttribute)
UNSUPPORTED(cuMemPoolSetAttribute)
UNSUPPORTED(cuMemPoolTrimTo)
UNSUPPORTED(cuMemPrefetchAsync_v2)
UNSUPPORTED(cuMemcpyPeerAsync)
UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuOccupancyAvailableDynamicSMemPerBlock)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
UNSUPPORTED(cuOccupancyMaxPotentialBlockSize)
UNSUPPORTED(cuOccupancyMaxPotentialBlockSizeWithFlags)
UNSUPPORTED(cuStreamAttachMemAsync)
}
