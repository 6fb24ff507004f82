// Reading a module's tokens one after another.
#pragma once

#include <string.h>

#include "program.hpp"

namespace ptx
{
class Cursor
{
  public:
    Cursor(const Module &module, size_t token) : at(token), m(module)
    {
    }
    size_t at; // the next token

    bool end() const
    {
        return at >= m.tokens.size();
    }
    const Token &peek(size_t ahead = 0) const;
    std::string text(size_t token) const
    {
        return {m.tokens[token].at, m.tokens[token].length};
    }
    std::string next(); // takes a token
    bool is(const char *word, size_t ahead = 0) const;
    bool take(const char *word);
    void must(const char *word);
    int64_t integer();                   // takes one, with its sign
    bool integer_at(size_t token) const; // whether it begins with a digit
    void skip_braces();                  // from behind "{" to behind its "}"
    [[noreturn]] void refuse(const char *form, ...) const __attribute__((format(printf, 2, 3)));

  private:
    const Module &m;
};

// A number as PTX has it: decimal, 0x, 0b, octal, with a U behind; 0f and 0d with the bits of a
// float. Returns the type: s64 for integers, f32 or f64; none: it is no number.
Type number_of(const char *text, size_t length, uint64_t *bits);
// ".align 8 .b8 name[16]" behind its state space; names that end in <n> are refused.
Variable take_variable(Cursor &c, Space space);
std::vector<Variable> take_params(Cursor &c); // "(.param ..., ..)", when there is one
} // namespace ptx
