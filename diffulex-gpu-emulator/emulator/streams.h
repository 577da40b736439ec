// Work in its order. Nothing runs before somebody waits for it, as late as a device may be: host memory that is changed too
// early, or read too early, gives wrong results every time.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launch.h"
#include "machine.h"
#include "ptx/program.h"
#include "results.h"

namespace emulator {

struct Node {
    enum Kind { Kernel, Copy, Set, Mark } kind;
    // The kernel's name; nodes of a graph that is updated must agree on it.
    std::string kernel;
    std::function<Result(Caller&, bool of_graph)> run;
};

struct Graph {
    std::vector<Node> nodes;
};

enum CaptureMode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

struct Stream {
    struct Work {
        Node node;
        std::shared_ptr<Caller> owner;
        bool of_graph;
    };
    std::deque<Work> queue;
    uint64_t n_enqueued = 0, n_done = 0;
    // Whether the default stream and this one wait for each other.
    bool is_blocking = true;

    // A capture in progress, by whom and how; and whether a call has spoilt it.
    std::unique_ptr<Graph> capture;
    CaptureMode mode = RELAXED;
    const Caller* capturer = nullptr;
    bool is_spoilt = false;
};

struct Event {
    std::shared_ptr<Stream> stream;
    uint64_t ticket = 0;
    double seconds = 0;
    bool of_capture = false;
};

class Streams {
public:
    std::shared_ptr<Stream> create(bool is_blocking);
    void destroy(Stream* stream);
    // The stream behind a handle; the default one for null and the two constants of cuda.h. Null for a wrong handle.
    std::shared_ptr<Stream> find(void* handle);

    // Appends to the stream, or to the graph that it captures.
    Result append(const std::shared_ptr<Stream>& stream, Node node);
    Result launch(const std::shared_ptr<Stream>& stream, const Graph& graph);
    // Runs what the stream holds, up to the ticket.
    void drain(Stream& stream, uint64_t ticket = UINT64_MAX);
    void drain_all();

    // An error where a capture of the calling thread (or of any, in the strictest mode) forbids what waits for the device or
    // changes its memory; the capture is spoilt by it.
    Result forbidden_in_capture();

private:
    void push(const std::shared_ptr<Stream>& stream, const Node& node, bool of_graph);
    std::set<std::shared_ptr<Stream>> all;
    std::shared_ptr<Stream> legacy = std::make_shared<Stream>();
};

Streams& streams();

// Nodes. A kernel's program is its decoded PTX, or null where its source runs.
typedef std::shared_ptr<const ptx::Program> Program;
Node kernel_node(const std::string& kernel, Program program, Dimensions grid, Dimensions block, unsigned shared, const std::vector<int>& sizes, void** arguments);
Node upload_node(unsigned char* to, const void* from, size_t n_bytes, std::function<bool(const void*, size_t)> is_host);
Node download_node(void* to, const unsigned char* from, size_t n_bytes, std::function<bool(const void*, size_t)> is_host);
Node copy_node(unsigned char* to, const unsigned char* from, size_t n_bytes);
Node set_node(unsigned char* to, unsigned value, size_t n_bytes, size_t width);

}  // namespace emulator
