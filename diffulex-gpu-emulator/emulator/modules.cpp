#include "modules.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "results.h"

namespace emulator {

// What drivers from 525 on load: NVRTC 12.0 writes it. The variable is for tests of an older driver.
static double newest_version() {
    const char* version = getenv("DIFFULEX_EMULATOR_PTX_VERSION");
    return version ? atof(version) : 8.0;
}

static int size_of(const std::string& type) {
    int bits = atoi(type.c_str() + 1);
    return bits / 8;
}

// `.param .align 8 .b8 name[16]` or `.param .u64 name`.
static int size_of_parameter(const std::string& text) {
    int size = 0;
    for (size_t at = text.find('.'); at != std::string::npos; at = text.find('.', at + 1)) {
        char kind = text[at + 1];
        bool is_type = strchr("busf", kind) && text[at + 2] >= '0' && text[at + 2] <= '9';
        if (is_type) size = size_of(text.substr(at + 1));
    }
    size_t bracket = text.find('[');
    return bracket == std::string::npos ? size : size * atoi(text.c_str() + bracket + 1);
}

Module read_ptx(const std::string& text) {
    Module module = {{}, 0, {}};
    size_t version = text.find(".version ");
    bool has_target = text.find(".target sm_") != std::string::npos && text.find(".address_size 64") != std::string::npos;
    if (version == std::string::npos || !has_target) return {{}, INVALID_PTX, {}};
    if (atof(text.c_str() + version + 9) > newest_version()) return {{}, UNSUPPORTED_PTX_VERSION, {}};
    for (size_t at = text.find(".entry "); at != std::string::npos; at = text.find(".entry ", at)) {
        at += 7;
        size_t open = text.find('(', at), close = text.find(')', at), body = text.find('{', at);
        if (open == std::string::npos || close == std::string::npos || body == std::string::npos) return {{}, INVALID_PTX, {}};
        std::string name = text.substr(at, open - at);
        Entry entry = {{}, 0};
        std::string parameters = text.substr(open, close - open);
        for (size_t from = parameters.find(".param"); from != std::string::npos;) {
            size_t next = parameters.find(".param", from + 1);
            entry.arguments.push_back(size_of_parameter(parameters.substr(from + 6, next - from - 6)));
            from = next;
        }
        size_t most = text.find(".maxntid ", close);
        if (most < body) {
            const char* numbers = text.c_str() + most + 9;
            entry.most_threads = 1;
            for (int i = 0; i < 3; i++) {
                entry.most_threads *= strtoul(numbers, (char**)&numbers, 10);
                while (*numbers == ',' || *numbers == ' ') numbers++;
            }
        }
        module.entries[name] = entry;
        at = body;
    }
    return module;
}

static std::string first_entry(const std::string& text) {
    size_t at = text.find(".entry ");
    return at == std::string::npos ? "" : text.substr(at, text.find('(', at) - at);
}

static std::string replaced(const std::string& text) {
    const char* path = getenv("DIFFULEX_EMULATOR_PTX");
    if (!path) return text;
    std::ifstream file(path);
    std::stringstream other;
    other << file.rdbuf();
    if (!file) {
        fprintf(stderr, "emulator: DIFFULEX_EMULATOR_PTX: cannot read %s\n", path);
        abort();
    }
    return first_entry(other.str()) == first_entry(text) ? other.str() : text;
}

Module decode_ptx(const std::string& text) {
    std::string decoded = replaced(text);
    Module module = read_ptx(decoded);
    if (module.error) return module;
    module.runs_ptx = true;
    try {
        module.programs = ptx::decode(decoded);
    } catch (const ptx::LoadError& error) {
        module.error = INVALID_PTX;
        module.what_is_wrong = error.text;
    }
    return module;
}

}  // namespace emulator
