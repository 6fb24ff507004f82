// Decodes the body of an entry and of the functions that it calls.
#pragma once

#include <tuple>
#include <unordered_map>

#include "statement.hpp"
#include "tokens.hpp"

namespace ptx
{
struct Register {
    Slot slot;
    uint32_t bits; // 1: a predicate
};
struct RegisterRange { // %r<count>
    Slot first;
    uint32_t count, bits;
};

// Declarations between "{" and "}".
struct Scope {
    std::unordered_map<std::string, Register> registers;
    std::unordered_map<std::string, RegisterRange> ranges; // by the name without its number
    std::unordered_map<std::string, Variable> variables;
    std::unordered_map<std::string, uint32_t> labels;                  // indices of instructions
    std::unordered_map<std::string, std::vector<std::string>> targets; // .branchtargets
    struct Goes {    // an instruction that goes to a label
        size_t inst; // or the list that has it
        std::vector<uint32_t> *list;
        size_t element;
        std::string label;
        uint32_t line;
    };
    std::vector<Goes> goes; // to labels that were not found in an inner scope
};

struct Callee {
    const Function *function;
    std::vector<Variable> results, params; // in the local memory of a thread
    uint32_t start;                        // index of its first instruction
};

class Decoder
{
  public:
    explicit Decoder(Entry &entry) : e(entry), m(*entry.module), c(*entry.module, entry.body)
    {
    }
    void run();

  private:
    friend class Statement;
    Entry &e;
    Module &m;
    Cursor c;
    std::vector<Scope> scopes;
    // By value, bits, and whether it is an offset in dynamic shared memory.
    std::map<std::tuple<uint64_t, uint32_t, bool>, Slot> constants;
    std::map<Special, Register> specials;
    std::map<std::string, Variable> shared; // of the module, those that are used
    std::deque<Callee> callees;
    Callee *inside = nullptr; // the function whose body is decoded; null: the entry
    uint32_t file = 0, line = 0;

    Slot allocate(uint32_t bits);
    uint64_t allocate_local(uint64_t bytes, uint32_t align);
    uint64_t allocate_shared(uint64_t bytes, uint32_t align);
    Slot constant(uint64_t value, uint32_t bits, bool in_dynamic = false);
    const Register *find_register(const std::string &name);
    const Variable *find_variable(const std::string &name);
    const Register *find_special(const std::string &name);
    Slot address(const Variable &v, int64_t offset, uint32_t bits); // a constant
    Callee &callee(const std::string &name);

    void body();
    void directive(const std::string &word);
    void declare_registers();
    void declare_variable(Space space);
    void take_location();
    void close_scope();
    void instruction(uint32_t at_line);
    void emit(Statement &s, Run run, Slot guard, bool guard_not, uint32_t at_line);
};
} // namespace ptx
