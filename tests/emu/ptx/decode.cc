// Bodies of functions: declarations, scopes, labels, and instructions, which the families decode.
#include "decoder.hpp"

#include <string.h>

#include "machine.hpp"

namespace ptx
{
// --- registers, constants, variables ---

Slot Decoder::allocate(uint32_t bits)
{
    const Slot slot = e.n_unit;
    e.n_unit += bits <= 32 ? 1 : bits / 32;
    return slot;
}

static uint64_t place_at(uint64_t end, uint32_t align)
{
    return (end + align - 1) & ~(uint64_t)(align - 1);
}

uint64_t Decoder::allocate_local(uint64_t bytes, uint32_t align)
{
    const uint64_t at = place_at(e.local_bytes, align);
    if (at + bytes > 512 << 10)
        c.refuse("more than 512 KiB of local memory for a thread");
    e.local_bytes = (uint32_t)(at + bytes);
    return at;
}

uint64_t Decoder::allocate_shared(uint64_t bytes, uint32_t align)
{
    const uint64_t at = place_at(e.shared_bytes, align);
    e.shared_bytes = (uint32_t)(at + bytes);
    return at;
}

// Dynamic shared memory lies behind the static one, whose size is known when all is decoded.
Slot Decoder::address(const Variable &v, int64_t offset, uint32_t bits)
{
    const bool dynamic = v.space == Space::shared && !v.bytes;
    const uint64_t base = v.space != Space::shared ? v.address
                          : dynamic                ? 0
                                                   : shared_at + v.address;
    return constant(base + (uint64_t)offset, bits, dynamic);
}

Slot Decoder::constant(uint64_t value, uint32_t bits, bool in_dynamic)
{
    if (bits < 64)
        value &= (1ull << bits) - 1;
    auto [at, fresh] = constants.insert({{value, bits, in_dynamic}, 0});
    if (fresh) {
        at->second = allocate(bits);
        e.constants.push_back({at->second, value, (uint8_t)bits, in_dynamic});
    }
    return at->second;
}

const Register *Decoder::find_register(const std::string &name)
{
    size_t digits = name.size();
    while (digits && name[digits - 1] >= '0' && name[digits - 1] <= '9')
        digits--;
    const std::string stem = name.substr(0, digits);
    for (size_t k = scopes.size(); k-- > 0;) {
        Scope &scope = scopes[k];
        auto exact = scope.registers.find(name);
        if (exact != scope.registers.end())
            return &exact->second;
        if (digits == name.size() || name.size() - digits > 9)
            continue;
        auto range = scope.ranges.find(stem);
        const uint32_t number = (uint32_t)strtoul(name.c_str() + digits, nullptr, 10);
        if (range == scope.ranges.end() || number >= range->second.count)
            continue;
        const RegisterRange &r = range->second;
        const uint32_t units = r.bits <= 32 ? 1 : r.bits / 32;
        return &(scope.registers[name] = {r.first + number * units, r.bits});
    }
    return nullptr;
}

const Variable *Decoder::find_variable(const std::string &name)
{
    for (size_t k = scopes.size(); k-- > 0;) {
        auto known = scopes[k].variables.find(name);
        if (known != scopes[k].variables.end())
            return &known->second;
    }
    auto of_module = m.variables.find(name);
    if (of_module == m.variables.end())
        return nullptr;
    if (of_module->second.space != Space::shared)
        return &of_module->second;
    auto [at, fresh] = shared.insert({name, of_module->second});
    Variable &v = at->second;
    if (fresh && v.bytes)
        v.address = allocate_shared(v.bytes, v.align);
    return &v;
}

const Register *Decoder::find_special(const std::string &name)
{
    static const char *const names[] = {"%tid.x",
                                        "%tid.y",
                                        "%tid.z",
                                        "%ntid.x",
                                        "%ntid.y",
                                        "%ntid.z",
                                        "%ctaid.x",
                                        "%ctaid.y",
                                        "%ctaid.z",
                                        "%nctaid.x",
                                        "%nctaid.y",
                                        "%nctaid.z",
                                        "%laneid",
                                        "%warpid",
                                        "%nwarpid",
                                        "%lanemask_eq",
                                        "%lanemask_le",
                                        "%lanemask_lt",
                                        "%lanemask_ge",
                                        "%lanemask_gt",
                                        "%clusterid.x",
                                        "%clusterid.y",
                                        "%clusterid.z",
                                        "%nclusterid.x",
                                        "%nclusterid.y",
                                        "%nclusterid.z",
                                        "%cluster_ctaid.x",
                                        "%cluster_ctaid.y",
                                        "%cluster_ctaid.z",
                                        "%cluster_nctaid.x",
                                        "%cluster_nctaid.y",
                                        "%cluster_nctaid.z",
                                        "%cluster_ctarank",
                                        "%cluster_nctarank",
                                        "%dynamic_smem_size",
                                        "%total_smem_size",
                                        "%smid",
                                        "%nsmid",
                                        "%gridid"};
    static_assert(sizeof names / sizeof *names == (size_t)Special::count, "a name for each");
    for (size_t k = 0; k < (size_t)Special::count; k++) {
        if (name != names[k])
            continue;
        auto [at, fresh] = specials.insert({(Special)k, {0, 32}});
        Register &r = at->second;
        if (fresh) {
            r.bits = (Special)k == Special::gridid ? 64 : 32;
            r.slot = allocate(r.bits);
            e.specials.push_back({r.slot, (Special)k});
        }
        return &r;
    }
    return nullptr;
}

// --- functions ---

Callee &Decoder::callee(const std::string &name)
{
    for (Callee &known : callees)
        if (known.function->name == name)
            return known;
    auto f = m.functions.find(name);
    if (f == m.functions.end() || !f->second.body)
        c.refuse("the function %s is called, and not in the module", name.c_str());
    callees.push_back({&f->second, f->second.results, f->second.params, 0});
    Callee &fresh = callees.back();
    for (auto *list : {&fresh.results, &fresh.params})
        for (Variable &v : *list) {
            v.space = Space::local;
            v.address = allocate_local(v.bytes, v.align);
        }
    return fresh;
}

void Decoder::run()
{
    c.at = e.body;
    scopes.emplace_back();
    for (Variable v : e.params) {
        v.address += (uint64_t)(uintptr_t)e.param_memory;
        scopes[0].variables[v.name] = v;
    }
    body();
    for (size_t k = 0; k < callees.size(); k++) { // calls in them append to the list
        inside = &callees[k];
        inside->start = (uint32_t)e.code.size();
        c.at = inside->function->body;
        scopes.emplace_back();
        for (auto *list : {&inside->results, &inside->params})
            for (const Variable &v : *list)
                scopes[0].variables[v.name] = v;
        body();
    }
    for (Inst &i : e.code)
        if (i.call)
            i.target = callees[i.target].start;
    for (const auto &known : m.variables) // whether this entry uses it or not, by ptxas
        if (known.second.space == Space::shared && !known.second.bytes)
            e.dynamic_align = std::max(e.dynamic_align, known.second.align);
    e.shared_bytes = (uint32_t)place_at(e.shared_bytes, e.dynamic_align);
    e.decoded = true;
}

// --- operations ---

static const std::unordered_map<std::string, std::vector<Decode>> &known_operations()
{
    static const auto all = [] {
        std::unordered_map<std::string, std::vector<Decode>> map;
        for (const Operation *family : {controls, memories, integers, floats, conversions,
                                        collectives, matrices, warpgroups, mbarriers, copies})
            for (const Operation *o = family; o->base; o++)
                map[o->base].push_back(o->decode);
        return map;
    }();
    return all;
}

// --- bodies ---

void Decoder::close_scope()
{
    Scope scope = std::move(scopes.back());
    scopes.pop_back();
    for (Scope::Goes &g : scope.goes) {
        auto label = scope.labels.find(g.label);
        if (label == scope.labels.end() && scopes.empty())
            refuse("PTX line %u: there is no label %s", g.line, g.label.c_str());
        if (label == scope.labels.end())
            scopes.back().goes.push_back(std::move(g));
        else if (g.list)
            (*g.list)[g.element] = label->second;
        else
            e.code[g.inst].target = label->second;
    }
}

void Decoder::body()
{
    const size_t outer = scopes.size() - 1;
    while (scopes.size() > outer) {
        const uint32_t at_line = c.peek().line;
        if (c.take("{")) {
            scopes.emplace_back();
        } else if (c.take("}")) {
            if (scopes.size() == outer + 1) { // an end without ret
                Statement s;
                s.decoder = this;
                s.base = "ret";
                emit(s, known_operations().at("ret")[0](s), no_guard, false, at_line);
            }
            close_scope();
        } else if (c.is(":", 1) && !c.is(":", 2)) {
            const std::string label = c.next();
            c.must(":");
            if (c.take(".branchtargets")) {
                auto &list = scopes.back().targets[label];
                do
                    list.push_back(c.next());
                while (c.take(","));
                c.must(";");
            } else if (!scopes.back().labels.insert({label, (uint32_t)e.code.size()}).second) {
                c.refuse("a second label %s", label.c_str());
            }
        } else if (c.peek().length && *c.peek().at == '.') {
            directive(c.next());
        } else {
            instruction(at_line);
        }
    }
}

void Decoder::directive(const std::string &word)
{
    if (word == ".loc") {
        take_location();
    } else if (word == ".reg") {
        declare_registers();
    } else if (word == ".shared") {
        declare_variable(Space::shared);
    } else if (word == ".local" || word == ".param") {
        declare_variable(Space::local);
    } else if (word == ".pragma") {
        while (!c.take(";"))
            c.next();
    } else {
        c.refuse("'%s' is not known in a function", word.c_str());
    }
}

// ".loc file line column[, function_name label[+n], inlined_at file line column]"
void Decoder::take_location()
{
    file = (uint32_t)c.integer();
    line = (uint32_t)c.integer();
    c.integer();
    while (c.take(",")) {
        const std::string what = c.next();
        if (what == "function_name") {
            c.next();
            if (c.take("+"))
                c.integer();
        } else if (what == "inlined_at") {
            for (int k = 0; k < 3; k++)
                c.integer();
        } else {
            c.refuse("'%s' of a .loc is not known", what.c_str());
        }
    }
}

void Decoder::declare_registers()
{
    std::string word = c.next();
    const Type type = type_of(word.substr(1));
    if (type == Type::none)
        c.refuse("registers of type '%s' are not known", word.c_str());
    const uint32_t bits = bits_of(type) == 8 ? 16 : bits_of(type);
    do {
        const std::string name = c.next();
        if (!c.take("<")) {
            scopes.back().registers[name] = {allocate(bits), bits};
            continue;
        }
        const uint32_t count = (uint32_t)c.integer();
        c.must(">");
        const Slot first = e.n_unit;
        e.n_unit += count * (bits <= 32 ? 1 : bits / 32);
        scopes.back().ranges[name] = {first, count, bits};
    } while (c.take(","));
    c.must(";");
}

void Decoder::declare_variable(Space space)
{
    Variable v = take_variable(c, space);
    v.address = space == Space::shared ? allocate_shared(v.bytes, v.align)
                                       : allocate_local(v.bytes, v.align);
    scopes.back().variables[v.name] = v;
    c.must(";");
}

// --- instructions ---

static std::vector<std::string> split_words(const std::string &opcode)
{
    std::vector<std::string> words;
    for (size_t at = 0; at <= opcode.size();) {
        size_t end = opcode.find('.', at);
        end = end == std::string::npos ? opcode.size() : end;
        words.push_back(opcode.substr(at, end - at));
        at = end + 1;
    }
    return words;
}

void Decoder::instruction(uint32_t at_line)
{
    Statement s;
    s.decoder = this;
    s.line = at_line;
    Slot guard = no_guard;
    bool guard_not = false;
    if (c.take("@")) {
        guard_not = c.take("!");
        const std::string name = c.next();
        const Register *r = find_register(name);
        if (!r || r->bits != 1)
            c.refuse("%s is no predicate", name.c_str());
        guard = r->slot;
    }
    std::string opcode = c.next();
    while (c.is(":") && c.is(":", 1)) { // "shared::cta"
        c.at += 2;
        opcode += "::" + c.next();
    }
    s.words = split_words(opcode);
    s.base = s.words[0];
    s.words.erase(s.words.begin());
    int depth = 0;
    for (size_t begin = c.at; !c.is(";") || depth; c.at++) {
        if (c.end())
            c.refuse("an instruction without its ';'");
        depth += c.is("{") || c.is("[") || c.is("(");
        depth -= c.is("}") || c.is("]") || c.is(")");
        const bool last = !depth && c.is(";", 1);
        if (last || (!depth && c.is(","))) {
            s.operands.push_back({begin, c.at - begin + last, false});
            begin = c.at + 1;
        }
    }
    c.must(";");
    auto found = known_operations().find(s.base);
    Run run = nullptr;
    if (found != known_operations().end())
        for (size_t k = 0; k < found->second.size() && !run; k++)
            run = found->second[k](s);
    if (!run)
        s.refuse("the operation is not known");
    if (!s.words.empty())
        s.refuse("the modifier '.%s' is not known", s.words[0].c_str());
    for (size_t k = 0; k < s.operands.size(); k++)
        if (!s.operands[k].used)
            s.refuse("operand %zu is one too many", k + 1);
    emit(s, run, guard, guard_not, at_line);
}

void Decoder::emit(Statement &s, Run run, Slot guard, bool guard_not, uint32_t at_line)
{
    auto add = [&](Inst i, std::vector<Slot> d, const std::vector<Slot> &sources) {
        i.guard = guard;
        i.guard_not = guard_not;
        i.line = at_line;
        i.file = file;
        i.source_line = line;
        i.n_d = (uint8_t)d.size();
        i.n_s = (uint8_t)sources.size();
        if (d.size() > 255 || sources.size() > 255)
            s.refuse("more than 255 operands");
        d.insert(d.end(), sources.begin(), sources.end());
        e.operands.push_back(std::move(d));
        i.d = e.operands.back().data();
        i.s = i.d + i.n_d;
        e.code.push_back(i);
    };
    for (const Statement::Extra &x : s.before)
        add(x.inst, {x.d}, {x.s});
    for (const std::string &label : s.labels)
        scopes.back().goes.push_back({e.code.size(), nullptr, 0, label, at_line});
    for (auto &list : s.lists)
        for (size_t k = 0; k < list.names.size(); k++)
            scopes.back().goes.push_back({0, list.list, k, list.names[k], at_line});
    s.inst.run = run;
    add(s.inst, s.d, s.s);
    for (const Statement::Extra &x : s.after)
        add(x.inst, {x.d}, {x.s});
}

void decode(Entry &e)
{
    if (e.decoded)
        return;
    Decoder(e).run();
    begin_coverage(e);
}

std::string place_of(const Entry &e, const Inst &i)
{
    auto file = e.module->files.find(i.file);
    const std::string ptx = "PTX line " + std::to_string(i.line);
    if (file == e.module->files.end() || !i.source_line)
        return ptx;
    return file->second + ":" + std::to_string(i.source_line) + " (" + ptx + ")";
}

std::string text_of(const Entry &e, const Inst &i)
{
    const std::string &all = e.module->text;
    const size_t at = all.find_first_not_of(" \t", e.module->line_at[i.line - 1]);
    const std::string text = all.substr(at, all.find('\n', at) - at);
    return text.size() > 100 ? text.substr(0, 97) + "..." : text;
}
} // namespace ptx
