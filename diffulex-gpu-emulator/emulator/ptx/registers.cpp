#include "registers.h"

#include <cstdlib>

namespace emulator::ptx {

std::string_view trimmed(std::string_view text) {
    size_t from = text.find_first_not_of(" \t\r\n");
    if (from == std::string_view::npos) return {};
    return text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
}

bool read_integer(std::string_view word, u64& value) {
    if (word.empty()) return false;
    bool is_negative = word[0] == '-';
    std::string digits(word.substr(is_negative));
    if (!digits.empty() && digits.back() == 'U') digits.pop_back();
    if (digits.empty() || digits[0] < '0' || digits[0] > '9') return false;
    char* end;
    value = strtoull(digits.c_str(), &end, 0);
    if (*end) return false;
    if (is_negative) value = 0 - value;
    return true;
}

u32 size_of_type(std::string_view type) {
    if (type.size() < 3 || type[0] != '.') return 0;
    if (std::string_view("busf").find(type[1]) == std::string_view::npos) return 0;
    u64 bits;
    return read_integer(type.substr(2), bits) ? u32(bits / 8) : 0;
}

// The first word, which is taken off the text.
static std::string_view take_word(std::string_view& text) {
    text = trimmed(text);
    size_t end = text.find_first_of(" \t\r\n");
    std::string_view word = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end);
    return word;
}

void Shared::declare(std::string_view text) {
    u64 alignment = 16, n = 1;
    std::string_view word = take_word(text);
    if (word == ".align") {
        if (!read_integer(take_word(text), alignment)) throw LoadError{"an alignment that is no number"};
        word = take_word(text);
    }
    u32 size = size_of_type(word);
    std::string_view name = trimmed(text);
    size_t bracket = name.find('[');
    if (!size || name.empty()) throw LoadError{"a shared variable of an unknown kind"};
    if (bracket != std::string_view::npos) {
        std::string_view count = name.substr(bracket + 1, name.find(']') - bracket - 1);
        name = trimmed(name.substr(0, bracket));
        if (count.empty()) {
            dynamic.emplace_back(name);
            return;
        }
        if (!read_integer(count, n)) throw LoadError{"an array's size that is no number"};
    }
    n_bytes = u32((n_bytes + alignment - 1) / alignment * alignment);
    offsets[std::string(name)] = n_bytes;
    n_bytes += u32(size * n);
}

void Shared::close() {
    n_bytes = (n_bytes + 127) / 128 * 128;
    for (const std::string& name : dynamic) offsets[name] = n_bytes;
}

u32 Registers::allocate(Width width) {
    // Lanes of 64 bits begin at a multiple of 64 bytes, as all do.
    u32 at = program.n_bytes;
    program.n_bytes += bytes_of(width);
    return at;
}

void Registers::declare(std::string_view text) {
    std::string_view type = take_word(text);
    u32 size = size_of_type(type);
    Width width = type == ".pred" ? Width::Predicate : size == 2 ? Width::Half : size == 4 ? Width::Word : Width::Double;
    if (type != ".pred" && size != 2 && size != 4 && size != 8) throw LoadError{"registers of the type " + std::string(type)};
    while (!text.empty()) {
        size_t comma = text.find(',');
        std::string_view name = trimmed(text.substr(0, comma));
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        size_t angle = name.find('<');
        if (angle == std::string_view::npos) {
            scopes.back().names[std::string(name)] = {allocate(width), width};
            continue;
        }
        u64 n;
        if (!read_integer(name.substr(angle + 1, name.find('>') - angle - 1), n)) throw LoadError{"a number of registers that is no number"};
        Range& range = scopes.back().ranges[std::string(name.substr(0, angle))];
        for (u64 i = 0; i < n; i++) range.registers.push_back({allocate(width), width});
    }
}

const Register* Registers::find(std::string_view name) const {
    size_t digits = name.find_last_not_of("0123456789") + 1;
    std::string prefix(name.substr(0, digits)), all(name);
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); scope++) {
        auto named = scope->names.find(all);
        if (named != scope->names.end()) return &named->second;
        auto range = scope->ranges.find(prefix);
        if (range == scope->ranges.end() || digits == name.size()) continue;
        size_t index = strtoul(name.data() + digits, nullptr, 10);
        if (index < range->second.registers.size()) return &range->second.registers[index];
    }
    return nullptr;
}

u32 Registers::constant(Width width, u64 bits) {
    if (width == Width::Half) bits &= 0xffff;
    if (width == Width::Word) bits &= 0xffffffff;
    if (width == Width::Predicate) bits = bits ? 0xffffffff : 0;
    auto [found, is_new] = constants.try_emplace({width, bits}, 0);
    if (is_new) {
        found->second = allocate(width);
        program.constants.push_back({found->second, width, bits});
    }
    return found->second;
}

static bool find_special(std::string_view word, Special& special) {
    static const std::map<std::string, Special, std::less<>> all = {
        {"%tid.x", Special::TidX}, {"%tid.y", Special::TidY}, {"%tid.z", Special::TidZ},
        {"%ntid.x", Special::NtidX}, {"%ntid.y", Special::NtidY}, {"%ntid.z", Special::NtidZ},
        {"%ctaid.x", Special::CtaidX}, {"%ctaid.y", Special::CtaidY}, {"%ctaid.z", Special::CtaidZ},
        {"%nctaid.x", Special::NctaidX}, {"%nctaid.y", Special::NctaidY}, {"%nctaid.z", Special::NctaidZ},
        {"%laneid", Special::LaneId},
    };
    auto found = all.find(word);
    if (found == all.end()) return false;
    special = found->second;
    return true;
}

bool Registers::target(std::string_view word, Width width, u32& at) const {
    const Register* found = find(word);
    if (!found || found->width != width) return false;
    at = found->at;
    return true;
}

bool Registers::source(std::string_view word, Width width, u32& at) {
    if (target(word, width, at)) return true;
    u64 bits;
    Special special;
    bool is_float = word.size() > 2 && word[0] == '0' && (word[1] == 'f' || word[1] == 'd');
    if (is_float) {
        Width of_word = word[1] == 'f' ? Width::Word : Width::Double;
        if (width != of_word || word.size() != (of_word == Width::Word ? 10u : 18u)) return false;
        at = constant(width, strtoull(std::string(word.substr(2)).c_str(), nullptr, 16));
    } else if (read_integer(word, bits)) {
        at = constant(width, bits);
    } else if (width == Width::Word && find_special(word, special)) {
        auto [found, is_new] = program.specials.try_emplace(special, 0);
        if (is_new) found->second = allocate(width);
        at = found->second;
    } else if (width == Width::Double || width == Width::Word) {
        auto variable = shared.offsets.find(word);
        if (variable == shared.offsets.end()) return false;
        at = constant(width, variable->second);
    } else {
        return false;
    }
    return true;
}

}  // namespace emulator::ptx
