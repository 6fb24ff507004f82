// An instruction as text, taken apart by the decoder of its operation.
#pragma once

#include "program.hpp"

namespace ptx
{
// Calls of target(), source() and the like append to inst.d and inst.s, in the order of the calls;
// each operand is asked for once. Whatever does not fit is refused.
class Statement
{
  public:
    std::string base;               // "cp" of cp.async.bulk
    std::vector<std::string> words; // the modifiers behind it that nobody has taken
    Inst inst = {};

    // --- modifiers ---
    bool take(const char *word); // takes it, if it is there, wherever it stands
    int take_of(std::initializer_list<const char *> words); // index of the one that is there, or -1
    int must_take_of(std::initializer_list<const char *> words);
    Type take_type();       // the next one that is a type
    Type last_type() const; // the last one that is a type, without taking it; none: there is none

    // --- operands ---
    size_t n_operand() const;
    // A register that is written, or "_". One wider than the type is widened by the type's sign.
    Slot target(size_t k, Type t);
    size_t targets_any(size_t k, uint32_t *bits); // of "{a, b, ..}", all of one width: *bits
    // A register or a constant; of a register wider than the type the low part.
    Slot source(size_t k, Type t);
    Slot source_pred(size_t k, bool *negated); // "p" or "!p"
    // The registers of "{a, b, ..}", or the one register; results and sources.
    size_t targets(size_t k, Type t);
    size_t sources(size_t k, Type t);
    size_t n_element(size_t k) const; // of "{..}"; 1 for what is none
    bool is_sink(size_t k) const;     // "_"
    // "p|q": both results, the second one slot 0 where there is none, which is told.
    bool targets_pair(size_t k, Type first, Type second);
    // To be called when inst.space is set: of a variable in local memory it becomes that
    // (parameters of calls are .param in the text). "[register + offset]" or "[variable + offset]":
    // a source, the address's register or a constant of 64 bits (32 of a register with 32), and the
    // offset in inst.value[n]. Returns the bits.
    uint32_t address(size_t k, int n);
    // Coordinates in the address of tensor copies, "[map, {x, y}]": sources of 32 bits, behind the
    // address, which address() took; the number of them.
    size_t coordinates(size_t k);
    int64_t immediate(size_t k); // a constant
    bool is_immediate(size_t k) const;
    void label(size_t k);                        // inst.target, when all labels are known
    std::vector<uint32_t> *label_list(size_t k); // of brx.idx: indices, when all labels are known
    std::string name(size_t k) const;            // an operand that is a word
    void take_name(size_t k)                     // whose name() says all
    {
        take_operand(k);
    }
    struct Callee &function(size_t k);      // that the entry has from now on; inst.call
    std::vector<Variable> locals(size_t k); // "(a, b)": parameters of a call, in local memory
    Slot scratch(uint32_t bits);            // a new register; not appended
    void
    behind(Run run); // the instruction is followed by another one, with its values and no operands
    // Room for anything that a decoder keeps for run: stays as long as the entry.
    template <class T> T *keep(T value)
    {
        auto p = std::make_shared<T>(std::move(value));
        kept(p);
        return p.get();
    }
    Entry &entry(); // that the instruction is of: decoders set what its grids have to know
    [[noreturn]] void refuse(const char *form, ...) const __attribute__((format(printf, 2, 3)));

  private:
    friend class Decoder;
    struct Operand {
        size_t token, n; // its tokens
        bool used;
    };
    struct Extra { // an instruction that narrows a source or widens a result
        Inst inst;
        Slot d, s;
    };
    struct List {
        std::vector<uint32_t> *list;
        std::vector<std::string> names;
    };
    class Decoder *decoder = nullptr;
    uint32_t line = 0; // of the text
    std::vector<Operand> operands;
    std::vector<Slot> d, s;
    std::vector<Extra> before, after;
    std::vector<std::string> labels;
    std::vector<List> lists;

    Operand &take_operand(size_t k);
    std::string word(size_t token) const;
    Slot read(size_t token, size_t n, Type t);
    Slot write(const std::string &name, Type t);
    std::vector<size_t> elements(const Operand &o) const; // of "{a, b}": tokens
    void kept(std::shared_ptr<void> p);
};

// Sets inst for an operation and returns what runs it; null: the operation is another family's, and
// nothing has been taken.
using Decode = Run (*)(Statement &s);
struct Operation {
    const char *base;
    Decode decode;
};
// The families: each a list that ends with a null.
extern const Operation integers[], floats[], conversions[], controls[], collectives[], memories[],
    matrices[], warpgroups[], mbarriers[], copies[];
} // namespace ptx
