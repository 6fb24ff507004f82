// Control flow: "Control Flow Instructions" of the PTX ISA.
#include "decoder.hpp"
#include "machine.hpp"

namespace ptx
{
static Next return_or_leave(Warp &w, const Inst &, uint32_t lanes)
{
    const uint32_t pc = w.group().pc;
    for (uint32_t rest = lanes; rest;) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);
        const bool from_entry = !w.depth[lane];
        const uint32_t to = from_entry ? 0 : w.back[w.depth[lane] - 1][lane];
        uint32_t same = 0; // lanes that go the same way
        each(rest, [&](uint32_t k) {
            if (from_entry ? !w.depth[k] : w.depth[k] && w.back[w.depth[k] - 1][k] == to)
                same |= 1u << k;
        });
        rest &= ~same;
        if (from_entry) {
            leave(w, same);
        } else {
            each(same, [&](uint32_t k) { w.depth[k]--; });
            jump(w, same, to);
        }
        if (rest) { // jump and leave have moved the others behind the instruction
            w.group().pc = pc;
        }
    }
    return Next::moved;
}

static Run decode_return(Statement &s)
{
    s.take("uni");
    return return_or_leave;
}

static Run decode_exit(Statement &)
{
    return [](Warp &w, const Inst &, uint32_t lanes) { return leave(w, lanes); };
}

static Run decode_branch(Statement &s)
{
    s.take("uni");
    s.label(0);
    return [](Warp &w, const Inst &i, uint32_t lanes) { return jump(w, lanes, i.target); };
}

// brx.idx: the label whose number is the operand.
static Next branch_by_index(Warp &w, const Inst &i, uint32_t lanes)
{
    const auto &list = *reinterpret_cast<const std::vector<uint32_t> *>(i.value[0]);
    const uint32_t *index = w.words(i.s[0]);
    const uint32_t pc = w.group().pc;
    for (uint32_t rest = lanes; rest;) {
        const uint32_t lane = (uint32_t)__builtin_ctz(rest);
        if (index[lane] >= list.size())
            fault(w, i, 1u << lane, "number %u of a list of %zu labels", index[lane], list.size());
        uint32_t same = 0;
        each(rest, [&](uint32_t k) { same |= (uint32_t)(index[k] == index[lane]) << k; });
        rest &= ~same;
        jump(w, same, list[index[lane]]);
        if (rest)
            w.group().pc = pc;
    }
    return Next::moved;
}

static Run decode_branch_by_index(Statement &s)
{
    s.take("uni");
    if (!s.take("idx"))
        s.refuse(".idx is expected");
    s.inst.strict = true;
    s.source(0, Type::u32);
    s.inst.value[0] = (int64_t)(intptr_t)s.label_list(1);
    return branch_by_index;
}

// --- calls: parameters are copied within a thread's local memory ---

struct Copied {
    uint64_t from, to, bytes;
};
struct Call {
    std::vector<Copied> in, out;
};

static void copy_local(Warp &w, uint32_t lanes, const std::vector<Copied> &list)
{
    const size_t bytes = w.block->grid->entry->local_bytes;
    for (const Copied &c : list)
        each(lanes, [&](uint32_t k) {
            unsigned char *local = w.local + k * bytes;
            memcpy(local + c.to, local + c.from, c.bytes);
        });
}

static Next call(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t pc = w.group().pc;
    copy_local(w, lanes, reinterpret_cast<const Call *>(i.value[0])->in);
    each(lanes, [&](uint32_t k) {
        if (w.depth[k] == max_depth)
            fault(w, i, 1u << k, "calls more than %u deep", max_depth);
        w.back[w.depth[k]++][k] = pc + 1;
    });
    return jump(w, lanes, i.target);
}

// Behind each call: what the function has left becomes the caller's.
static Next take_results(Warp &w, const Inst &i, uint32_t lanes)
{
    copy_local(w, lanes, reinterpret_cast<const Call *>(i.value[0])->out);
    return Next::on;
}

static void pair_up(Statement &s, const std::vector<Variable> &from,
                    const std::vector<Variable> &to, std::vector<Copied> *list)
{
    if (from.size() != to.size())
        s.refuse("%zu parameters or results, the function has %zu", from.size(), to.size());
    for (size_t k = 0; k < from.size(); k++) {
        if (from[k].bytes != to[k].bytes)
            s.refuse("%s has %llu bytes, %s %llu", from[k].name.c_str(),
                     (unsigned long long)from[k].bytes, to[k].name.c_str(),
                     (unsigned long long)to[k].bytes);
        list->push_back({from[k].address, to[k].address, from[k].bytes});
    }
}

static Run decode_call(Statement &s)
{
    s.take("uni");
    const bool results = s.name(0) == "(";
    const Callee &f = s.function(results);
    Call *made = s.keep(Call());
    pair_up(s, s.n_operand() > 1u + results ? s.locals(1 + results) : std::vector<Variable>(),
            f.params, &made->in);
    pair_up(s, f.results, results ? s.locals(0) : std::vector<Variable>(), &made->out);
    s.inst.value[0] = (int64_t)(intptr_t)made;
    s.behind(take_results);
    return call;
}

static Run decode_trap(Statement &)
{
    return [](Warp &w, const Inst &i, uint32_t lanes) -> Next {
        fault(w, i, lanes, "the kernel ends itself");
    };
}

static Run decode_nothing(Statement &) // brkpt
{
    return [](Warp &, const Inst &, uint32_t) { return Next::on; };
}

const Operation controls[] = {
    {"ret", decode_return},          {"exit", decode_exit}, {"bra", decode_branch},
    {"brx", decode_branch_by_index}, {"call", decode_call}, {"trap", decode_trap},
    {"brkpt", decode_nothing},       {nullptr, nullptr},
};
} // namespace ptx
