#include "streams.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "launch.h"
#include "ptx/run.h"

namespace emulator {

// As many as a stream may hold before a call waits for room. Chosen by us: about a device's own.
constexpr size_t MOST_PENDING = 4096;

Streams& streams() {
    static auto* all = new Streams;
    return *all;
}

std::shared_ptr<Stream> Streams::create(bool is_blocking) {
    auto stream = std::make_shared<Stream>();
    stream->is_blocking = is_blocking;
    all.insert(stream);
    return stream;
}

std::shared_ptr<Stream> Streams::find(void* handle) {
    if ((uintptr_t)handle <= 2) return legacy;
    for (auto& stream : all)
        if (stream.get() == handle) return stream;
    return nullptr;
}

void Streams::destroy(Stream* stream) {
    drain(*stream);
    all.erase(find(stream));
}

void Streams::push(const std::shared_ptr<Stream>& stream, const Node& node, bool of_graph) {
    if (stream->queue.size() >= MOST_PENDING) drain(*stream, stream->n_enqueued - MOST_PENDING / 2);
    stream->queue.push_back({node, caller(), of_graph});
    stream->n_enqueued++;
    if (machine().is_eager) drain(*stream);
}

Result Streams::append(const std::shared_ptr<Stream>& stream, Node node) {
    if (stream->capture) {
        if (stream->is_spoilt) return STREAM_CAPTURE_INVALIDATED;
        if (node.kind != Node::Mark) stream->capture->nodes.push_back(std::move(node));
        return SUCCESS;
    }
    // The default stream and the blocking ones run in the order of the calls.
    if (stream == legacy || stream->is_blocking)
        for (auto& other : all)
            if (other->is_blocking && other != stream) {
                if (other->capture) return STREAM_CAPTURE_IMPLICIT;
                if (stream == legacy) drain(*other);
            }
    if (stream != legacy && stream->is_blocking) drain(*legacy);
    push(stream, node, false);
    return SUCCESS;
}

Result Streams::launch(const std::shared_ptr<Stream>& stream, const Graph& graph) {
    if (stream->capture) return NOT_SUPPORTED;
    caller()->counters.graphs++;
    for (const Node& node : graph.nodes) push(stream, node, true);
    return SUCCESS;
}

void Streams::drain(Stream& stream, uint64_t ticket) {
    while (!stream.queue.empty() && stream.n_done < ticket) {
        Stream::Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        stream.n_done++;
        // A context that has failed does nothing any more.
        if (machine().error || work.owner->error) continue;
        Memory::Open open(machine().memory);
        if (Result result = work.node.run(*work.owner, work.of_graph)) {
            work.owner->error = result;
            if (machine().is_sticky) machine().error = result;
        }
    }
}

void Streams::drain_all() {
    drain(*legacy);
    for (auto& stream : std::vector<std::shared_ptr<Stream>>(all.begin(), all.end())) drain(*stream);
}

Result Streams::forbidden_in_capture() {
    Result result = SUCCESS;
    for (auto& stream : all) {
        bool is_mine = stream->capturer == caller().get();
        if (!stream->capture || stream->mode == RELAXED || (stream->mode == THREAD_LOCAL && !is_mine)) continue;
        stream->is_spoilt = true;
        result = STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

// A launch, with its arguments as they are now.
static Result launch_kernel(Caller& owner, bool of_graph, const Launch& launch, const Program& program, std::vector<std::vector<char>> values) {
    Machine& device = machine();
    (of_graph ? owner.counters.kernels_of_graphs : owner.counters.kernels)++;
    bool is_planted = owner.fail_launch && !--owner.fail_launch;
    bool is_planted_for_all = device.fail_launch && !--device.fail_launch;
    std::string failure;
    if (is_planted || is_planted_for_all) {
        failure = "a planted fault";
        if (is_planted_for_all) device.error = LAUNCH_FAILED;
    } else {
        std::vector<void*> arguments;
        for (auto& value : values) arguments.push_back(value.data());
        Launch seeded = launch;
        seeded.seed = device.seed + owner.seed + owner.n_launches++;
        device.loaded.clear();
        failure = program ? ptx::run(program, seeded, values) : run(seeded, arguments.data());
        for (Allocation* allocation : device.loaded) {
            Loads& loads = owner.loads[{launch.kernel, (uint64_t)allocation->begin}];
            loads.n_launches++;
            loads.n_bytes += allocation->n_loaded;
        }
    }
    if (failure.empty()) return SUCCESS;
    if (!owner.is_quiet) fprintf(stderr, "emulator: %s: %s\n", launch.kernel, failure.c_str());
    owner.failure = failure;
    return LAUNCH_FAILED;
}

Node kernel_node(const std::string& kernel, Program program, Dimensions grid, Dimensions block, unsigned shared, const std::vector<int>& sizes, void** arguments) {
    std::vector<std::vector<char>> values;
    for (size_t i = 0; i < sizes.size(); i++) values.emplace_back((char*)arguments[i], (char*)arguments[i] + sizes[i]);
    return {Node::Kernel, kernel, [=](Caller& owner, bool of_graph) {
                return launch_kernel(owner, of_graph, {kernel.c_str(), grid, block, shared, 0}, program, values);
            }};
}

static void count(uint64_t& n, uint64_t& bytes, uint64_t& largest, size_t n_bytes) {
    n++;
    bytes += n_bytes;
    largest = std::max(largest, (uint64_t)n_bytes);
}

// The memory may have been freed since the call, or since the capture.
static Result lost(Caller& owner, const char* what) {
    fprintf(stderr, "emulator: %s was freed before its copy ran\n", what);
    owner.failure = std::string(what) + " was freed before its copy ran";
    return ILLEGAL_ADDRESS;
}

Node upload_node(unsigned char* to, const void* from, size_t n_bytes, std::function<bool(const void*, size_t)> is_host) {
    return {Node::Copy, "", [=](Caller& owner, bool) {
                if (!machine().memory.holds(to, n_bytes)) return lost(owner, "device memory");
                if (!is_host(from, n_bytes)) return lost(owner, "host memory");
                memcpy(to, from, n_bytes);
                machine().memory.mark_written(to, n_bytes);
                Counters& counters = owner.counters;
                count(counters.uploads, counters.uploaded_bytes, counters.largest_upload, n_bytes);
                return SUCCESS;
            }};
}

Node download_node(void* to, const unsigned char* from, size_t n_bytes, std::function<bool(const void*, size_t)> is_host) {
    return {Node::Copy, "", [=](Caller& owner, bool) {
                if (!machine().memory.holds(from, n_bytes)) return lost(owner, "device memory");
                if (!is_host(to, n_bytes)) return lost(owner, "host memory");
                memcpy(to, from, n_bytes);
                Counters& counters = owner.counters;
                count(counters.downloads, counters.downloaded_bytes, counters.largest_download, n_bytes);
                return SUCCESS;
            }};
}

Node copy_node(unsigned char* to, const unsigned char* from, size_t n_bytes) {
    return {Node::Copy, "", [=](Caller& owner, bool) {
                Memory& memory = machine().memory;
                if (!memory.holds(to, n_bytes) || !memory.holds(from, n_bytes)) return lost(owner, "device memory");
                memmove(to, from, n_bytes);
                memory.copy_marks(to, from, n_bytes);
                owner.counters.device_copies++;
                return SUCCESS;
            }};
}

Node set_node(unsigned char* to, unsigned value, size_t n_bytes, size_t width) {
    return {Node::Set, "", [=](Caller& owner, bool) {
                if (!machine().memory.holds(to, n_bytes)) return lost(owner, "device memory");
                if (value == 0) {
                    machine().memory.clear(to, n_bytes);
                } else {
                    for (size_t at = 0; at < n_bytes; at += width) memcpy(to + at, &value, width);
                    machine().memory.mark_written(to, n_bytes);
                }
                owner.counters.memsets++;
                return SUCCESS;
            }};
}

}  // namespace emulator
