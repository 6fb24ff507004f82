// A PTX module: what its text says, decoded into instructions that warps execute.
//
// Source: PTX ISA 9, "Syntax", "State Spaces, Types, and Variables", "Directives".
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx
{
struct Warp;
struct Inst;
struct Module;

// Thrown for text that is not PTX, or that uses what is not emulated.
struct Refused {
    std::string why;
};
[[noreturn]] void refuse(const char *form, ...) __attribute__((format(printf, 1, 2)));

enum class Type : uint8_t {
    none,
    b8,
    b16,
    b32,
    b64,
    b128,
    u8,
    u16,
    u32,
    u64,
    s8,
    s16,
    s32,
    s64,
    f16,
    f16x2,
    bf16,
    bf16x2,
    tf32,
    f32,
    f64,
    e4m3,
    e5m2,
    e4m3x2,
    e5m2x2,
    u16x2,
    s16x2,
    pred,
};
Type type_of(const std::string &name); // none: there is no such type
const char *name_of(Type t);
uint32_t bits_of(Type t); // of a value; 1 for pred
static inline bool is_signed(Type t)
{
    return (t >= Type::s8 && t <= Type::s64) || t == Type::s16x2;
}
static inline bool is_integer(Type t) // with untyped bits
{
    return (t >= Type::b8 && t <= Type::s64) || t == Type::u16x2 || t == Type::s16x2;
}
static inline bool is_float(Type t)
{
    return t >= Type::f16 && t <= Type::e5m2x2;
}

enum class Space : uint8_t { generic, global, shared, local, param, constant };

// Result of an instruction for the lanes that have executed it.
enum class Next : uint8_t {
    on,    // they go on behind it
    moved, // the instruction has put them where they go on
    wait,  // they execute it again when something has happened in the grid
    poll,  // they go on behind it, when something has happened in the grid or nothing else can run
};
// Executes an instruction in `lanes`, of which there is at least one.
using Run = Next (*)(Warp &w, const Inst &i, uint32_t lanes);

// An operand is a slot: the first of the 128-byte units of a warp's register file that hold its
// value in all lanes. Up to 32 bits take one unit (uint32_t [32]; narrower values with zeros
// above), 64 bits two (uint64_t [32]), 128 bits four (two registers of 64 bits, the low half
// first), a predicate one, whose first word has a bit a lane. Constants and special registers are
// slots as well, which are filled when a warp begins.
using Slot = uint32_t;

struct Inst {
    Run run;
    Slot guard; // a predicate; no_guard: none
    bool guard_not;
    // Sources that were never written are a fault (addresses, what is stored, branches, operands
    // of collectives); of other instructions they make the result one that was never written.
    bool strict;
    bool own_defined; // run itself says which of its results are written: Warp::defined
    bool collective;  // lanes that the guard leaves out go on without the others
    bool aligned;     // needs all lanes that have not returned: .aligned
    bool call;        // target is a function: its number until all are decoded
    bool wgmma;       // may touch registers of products in flight
    Type type, from;  // from: of the source of a conversion, of the second operand of a product
    Space space;
    uint8_t n_d, n_s;
    const Slot *d, *s; // results and sources, as the decoder has asked for them
    int64_t value[3];  // offsets of addresses, immediates, whatever the decoder keeps for run
    uint32_t target;   // index of the instruction that a branch or call goes to
    uint32_t line;     // of the module's text
    uint32_t file, source_line; // of the .loc in front of it; source_line 0: none
    unsigned char *executed;    // not 0 when it was (coverage.cc)
};
constexpr Slot no_guard = ~0u;

// A variable in shared, local or parameter memory of a function, or in device memory of a module.
struct Variable {
    std::string name;
    Space space;
    uint32_t align;
    uint64_t bytes;   // 0: of the extern one, all dynamic shared memory
    uint64_t address; // in its space, when it has been placed
};

struct Constant { // a slot with the same value in all lanes
    Slot slot;
    uint64_t value;
    uint8_t bits;    // 1: a predicate
    bool in_dynamic; // value is an offset in dynamic shared memory, and an address is wanted
};
enum class Special : uint8_t {
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid,
    nwarpid,
    lanemask_eq,
    lanemask_le,
    lanemask_lt,
    lanemask_ge,
    lanemask_gt,
    clusterid_x,
    clusterid_y,
    clusterid_z,
    nclusterid_x,
    nclusterid_y,
    nclusterid_z,
    cluster_ctaid_x,
    cluster_ctaid_y,
    cluster_ctaid_z,
    cluster_nctaid_x,
    cluster_nctaid_y,
    cluster_nctaid_z,
    cluster_ctarank,
    cluster_nctarank,
    dynamic_smem_size,
    total_smem_size,
    smid,
    nsmid,
    gridid,
    count
};
struct SpecialSlot {
    Slot slot;
    Special which;
};

// An entry with the functions that it calls, as one sequence of instructions.
struct Entry {
    Module *module;
    std::string name;
    std::vector<Variable> params; // addresses are offsets in param_memory
    uint32_t param_bytes = 0;
    unsigned char *param_memory = nullptr; // aligned to 128; its address is that of the parameters
    uint32_t max_threads[3] = {0, 0, 0};   // 0: no bound
    bool exact_threads = false;            // .reqntid
    uint32_t min_blocks = 0;
    uint32_t max_registers = 0;      // of a thread; 0: no bound
    uint32_t cluster[3] = {0, 0, 0}; // 0: the launch says it
    size_t body = 0;                 // token behind its "{"

    // Decoded by decode(), when it is first needed:
    bool decoded = false;
    std::vector<Inst> code;
    std::deque<std::vector<Slot>> operands;  // what Inst::d and ::s point into
    std::vector<std::shared_ptr<void>> kept; // by Statement::keep
    std::vector<Constant> constants;
    std::vector<SpecialSlot> specials;
    uint32_t n_unit = 0;         // of a warp's register file
    uint32_t shared_bytes = 0;   // static, to where dynamic shared memory begins
    uint32_t local_bytes = 0;    // of a thread, with the parameters of calls
    uint32_t dynamic_align = 1;  // of dynamic shared memory
    bool wgmma = false;          // wgmma occurs
    bool constant_reads = false; // ld.global.nc occurs
    bool async_proxy = false;    // bulk or tensor copies of shared memory occur
    ~Entry();
};

struct Token { // of the module's text
    const char *at;
    uint32_t length, line;
};

struct Function { // .func: decoded into each entry that calls it
    std::string name;
    std::vector<Variable> results, params;
    size_t body = 0; // 0: declared only
};

struct Module {
    std::string text;
    std::vector<size_t> line_at; // of the first line, the second ..
    std::vector<Token> tokens;
    std::string target; // "sm_90a"
    int version = 0;    // 90: ISA 9.0
    std::map<uint32_t, std::string> files;
    std::map<std::string, Variable> variables; // .global, .const and .shared outside functions
    std::map<std::string, std::unique_ptr<Entry>> entries;
    std::map<std::string, Function> functions;
    std::vector<void *> memory; // of its variables, by emu_alloc
    ~Module();
};

// Reads a module's text (ends with a zero) and places its variables in device memory. Throws
// Refused.
std::unique_ptr<Module> parse(const char *text);
// Decodes an entry. Throws Refused.
void decode(Entry &e);
// Sets Inst::executed of all instructions. Throws Refused.
void begin_coverage(Entry &e);
// "kernels/attn.cuh:40 (PTX line 1203)"
std::string place_of(const Entry &e, const Inst &i);
// The instruction's line without blanks around it, at most 100 characters.
std::string text_of(const Entry &e, const Inst &i);
} // namespace ptx
